"""One writer at a time on this machine."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time

from stepctl.base.errors import LineageConflict

_POLL_SEC = 0.05
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def wait_for(fd: int, what: str, wait_sec: float) -> None:
    """Lock an open file until it is closed; where the file system has no locks, go on without.

    Raises:
        LineageConflict: another process held ``what`` for ``wait_sec`` seconds.
    """
    until = time.monotonic() + wait_sec
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
                raise LineageConflict(
                    f"{what} is in use by {holder}",
                    safe="nothing was changed",
                    next="wait until it has finished, then repeat the command",
                    code="lineage_locked",
                ) from None
            time.sleep(_POLL_SEC)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return  # the order in which the storage has them decides
        else:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            return
