"""stdin and stdout as a client uses them: raw, whole, and with an end when nobody speaks any more."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
from collections.abc import Callable

_BLOCK = 1 << 17
_PIPE = 1 << 20
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)


class Silence(Exception):
    """The other side said nothing for too long."""


class Input:
    """stdin: a line, then bytes."""

    def __init__(self, fd: int = 0, idle_sec: float | None = None) -> None:
        self._fd, self._rest, self.idle_sec = fd, b"", idle_sec
        # Fewer turns between sshd and us; only Linux has it, and only for a pipe.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, _SET_PIPE_SIZE, _PIPE)

    def recv(self, size: int) -> bytes:
        """Some bytes; empty at the end.

        Raises:
            Silence: nothing came for ``idle_sec`` seconds.
        """
        if self._rest:
            data, self._rest = self._rest[:size], self._rest[size:]
            return data
        self._wait()
        return os.read(self._fd, min(size, _BLOCK))

    def recv_into(self, room: memoryview) -> int:
        """As :meth:`recv`, into ``room``; returns how many bytes."""
        if self._rest:
            data = self.recv(len(room))
            room[: len(data)] = data
            return len(data)
        self._wait()
        return os.readv(self._fd, [room])

    def _wait(self) -> None:
        if self.idle_sec is not None and not select.select([self._fd], [], [], self.idle_sec)[0]:
            raise Silence

    def line(self) -> bytes:
        """A whole line with its end; what came before the end of the stream otherwise."""
        found = bytearray()
        while b"\n" not in found[-_BLOCK:]:
            data = self.recv(_BLOCK)
            if not data:
                return bytes(found)
            found += data
        line, end, self._rest = bytes(found).partition(b"\n")
        return line + end


def writer(fd: int = 1) -> Callable[[bytes | memoryview], None]:
    """Writes all of what it is given.

    Raises (when called):
        BrokenPipeError: the client is gone.
    """

    def write(data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    return write
