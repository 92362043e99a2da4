"""The job's files here: each a prefix of the machine's, byte for byte, whoever copies and whenever it is killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepctl.base.files import write_atomic
from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import Ask, Job, attempt_of

LATE_SEC = 5.0
"""A process that is still there so long after its exit code was written is not waited for."""


class Mirror:
    """Takes over what the agent told."""

    def __init__(self, job: JobDir, clock: Callable[[], float]) -> None:
        self._job, self._clock = job, clock
        self._over: float | None = None

    def offsets(self) -> tuple[int, int]:
        """Bytes of events and log that are here."""
        return _size(self._job.events), _size(self._job.log)

    @property
    def attempt(self) -> str | None:
        """The start that the files here belong to; None before the first one."""
        try:
            return attempt_of(self._job.job.read_bytes())
        except FileNotFoundError:
            return None

    def begin(self, spec: bytes) -> None:
        """A new start: what an earlier one left is removed here, and nothing of it is taken over any more."""
        with self._lock(wait=True):
            write_atomic(self._job.job, spec, mode=0o600)
            for leftover in (self._job.exit_code, self._job.result, self._job.events, self._job.log, self._job.reason):
                leftover.unlink(missing_ok=True)

    def take(self, ask: Ask, told: Job) -> bool:
        """Append what is new. The result and then the exit code come last, when all else is here.

        Returns:
            Whether everything that was there is here now.
        """
        with self._lock(wait=False) as mine:
            if not mine or told.attempt != self.attempt:
                return False
            _append(self._job.events, ask.events, told.events)
            _append(self._job.log, ask.log, told.log)
            if told.reason and not self._job.reason.exists():
                self._job.control.mkdir(exist_ok=True)
                write_atomic(self._job.reason, told.reason.encode())
            # A machine that lost power may have lost the end of its files, which is here.
            here = self.offsets()
            whole = here[0] >= told.events_size and here[1] >= told.log_size
            if whole and told.exit_code is not None and self._is_over(told):
                if told.result is not None:
                    write_atomic(self._job.result, told.result)
                write_atomic(self._job.exit_code, told.exit_code)
            return whole

    def _is_over(self, told: Job) -> bool:
        """The log may still grow until the process is gone."""
        if not told.alive:
            return True
        if self._over is None:
            self._over = self._clock()
        return self._clock() - self._over >= LATE_SEC

    @contextmanager
    def _lock(self, *, wait: bool) -> Iterator[bool]:
        """One process writes here at a time; one that copies is enough."""
        fd = os.open(self._job.path / ".sync", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _append(path: Path, offset: int, data: bytes) -> None:
    """Add what is beyond the file's end of ``data``, which began at ``offset``."""
    here = _size(path)
    if not offset <= here < offset + len(data):
        return
    with path.open("ab", buffering=0) as file:
        left = memoryview(data)[here - offset :]
        while left:
            left = left[file.write(left) :]
