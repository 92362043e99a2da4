"""How fast we ask and how long we wait: every wait of this room goes through a `Pace`, so that tests have a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from stepctl.base.names import utc_now


@dataclass(frozen=True)
class Pace:
    """Seconds between two questions to the provider, and the clocks.

    Attributes:
        poll_seconds: between two questions. What has to be spread over a time is so many polls, not so many seconds,
            so that an emulated provider can be asked faster.
        sleep: waits that many seconds.
        now: a clock that never goes back, in seconds.
        utc: the wall clock, for records where the provider's own clock is not known.
    """

    poll_seconds: float = 10.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    utc: Callable[[], datetime] = utc_now

    def poll(self) -> None:
        """Wait until the next question may be asked."""
        self.sleep(self.poll_seconds)

    def wait(self, seconds: float) -> None:
        """Wait ``seconds``."""
        if seconds > 0:
            self.sleep(seconds)

    def deadline(self, seconds: float) -> Deadline:
        """A bound of ``seconds`` from now."""
        return Deadline(self, self.now() + seconds)


@dataclass(frozen=True)
class Deadline:
    """A moment of a pace's clock."""

    pace: Pace
    at: float

    @property
    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self.at - self.pace.now()

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self.left <= 0
