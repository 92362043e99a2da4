"""From bytes as they go to events that are worth showing."""

from __future__ import annotations

from collections.abc import Callable

from stepctl.jobs.events import Sink, Transfer

QUIET_SEC = 1.0
"""A transfer that is over sooner is not spoken of, and none more often; a long one less and less often."""

_PART = 20


class Transfers:
    """Called with bytes done and bytes in all, from whatever thread; makes a :class:`Transfer` now and then."""

    def __init__(self, emit: Sink, clock: Callable[[], float]) -> None:
        self._emit, self._clock = emit, clock
        self._total = self._done = -1
        self._began = self._said = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if total != self._total or done < self._done:  # another transfer
            self._began = self._said = now
        self._total, self._done = total, done
        elapsed = now - self._began
        if now - self._said < max(QUIET_SEC, elapsed / _PART):
            return
        self._said = now
        eta = elapsed * (total - done) / done if done else 0.0
        self._emit(Transfer(bytes_done=done, bytes_total=total, elapsed_sec=elapsed, eta_sec=eta))
