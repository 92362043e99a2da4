"""The way to a run's agent, kept open: sought again when it is lost, without ever making anybody wait for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from stepctl.base.errors import StepctlError
from stepctl.targets.ssh import errors
from stepctl.targets.ssh.channel import Agent
from stepctl.targets.ssh.connect import Connection

BACK_OFF_SEC = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


@dataclass
class Opened:
    """A connection, and the run's agent; None when the machine has nothing of the run."""

    connection: Connection
    agent: Agent | None


class _Attempt:
    """One try to connect, in a thread of its own."""

    def __init__(self, open: Callable[[], Opened]) -> None:
        self.found: Opened | None = None
        self.error: StepctlError | None = None
        self._open = open
        self._lock, self._left = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            found = self._open()
            with self._lock:
                self.found = found
                if self._left:
                    found.connection.close()
        except StepctlError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - whatever a library raises, it is told and tried again
            self.error = errors.LinkLost(f"no connection: {type(error).__name__}: {error}")

    def leave(self) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._left = True
            if self.found is not None:
                self.found.connection.close()

    def over(self, wait: float) -> bool:
        self._thread.join(wait)
        return not self._thread.is_alive()


class Absence:
    """How long something has been missing without a break, so that what only comes late is not given up."""

    def __init__(self, clock: Callable[[], float], hold: float) -> None:
        self._clock, self._hold = clock, hold
        self._since: float | None = None

    def believed(self) -> bool:
        """It is missing now; whether it was for as long as it takes."""
        if self._since is None:
            self._since = self._clock()
        return self._clock() - self._since >= self._hold

    def over(self) -> None:
        """It is there, or nobody can tell."""
        self._since = None


class Link:
    """Opens, keeps and reopens."""

    def __init__(self, open: Callable[[], Opened], clock: Callable[[], float], notice: Callable[[str], None]) -> None:
        self._open, self._clock, self._notice = open, clock, notice
        self._opened: Opened | None = None
        self._attempt: _Attempt | None = None
        self._failed, self._next = 0, 0.0
        self._was_open = self._told = self._told_what_lasts = False

    @property
    def opened(self) -> Opened | None:
        """What is open now."""
        if self._opened is not None and not self._opened.connection.alive:
            self.lost(errors.lost(self._opened.connection.where))
        return self._opened

    def put(self, opened: Opened) -> None:
        """Keep a connection that was opened elsewhere."""
        if self._opened is not None and self._opened.connection is not opened.connection:
            self._opened.connection.close()
        self._opened, self._was_open, self._failed = opened, True, 0
        if self._told:
            self._notice(f"connected to {opened.connection.where} again")
            self._told = self._told_what_lasts = False

    def now(self) -> Opened:
        """Open it, waiting for that.

        Raises:
            SshError: it cannot be had.
        """
        opened = self.opened
        if opened is None:
            self._leave()
            opened = self._open()
            self.put(opened)
        return opened

    def soon(self, patience: float) -> Opened | None:
        """What is open, or becomes open within ``patience`` seconds; None otherwise: ask again later.

        Raises:
            SshError: a lasting one, when there never was a connection.
        """
        if (opened := self.opened) is not None:
            return opened
        if self._attempt is None:
            if self._clock() < self._next:
                return None
            self._attempt = _Attempt(self._open)
        if not self._attempt.over(patience):
            return None
        attempt, self._attempt = self._attempt, None
        if attempt.found is not None:
            self.put(attempt.found)
            return attempt.found
        assert attempt.error is not None
        self.lost(attempt.error)
        return None

    def lost(self, error: StepctlError) -> None:
        """Note that there is no connection, and wait longer each time before the next try.

        It is said once, and once more when a person must mend something.

        Raises:
            SshError: ``error``, when it lasts and there never was a connection.
        """
        lasts = isinstance(error, errors.SshError) and error.lasting
        if lasts and not self._was_open:
            raise error
        if self._opened is not None:
            self._opened.connection.close()
            self._opened = None
        pause = BACK_OFF_SEC[min(self._failed, len(BACK_OFF_SEC) - 1)]
        self._failed += 1
        self._next = self._clock() + pause
        if not self._told or (lasts and not self._told_what_lasts):
            self._told, self._told_what_lasts = True, self._told_what_lasts or lasts
            self._notice(f"{error.message}; a job that runs there goes on, and the connection is sought again")

    def _leave(self) -> None:
        if self._attempt is not None:
            self._attempt.leave()
            self._attempt = None

    def close(self) -> None:
        """Let go of it."""
        self._leave()
        if self._opened is not None:
            self._opened.connection.close()
            self._opened = None
