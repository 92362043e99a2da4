"""What a call is given: settings, the run store, a clock, somebody to tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stepctl.config.load import Loaded
from stepctl.jobs.events import AnyEvent
from stepctl.jobs.transfers import Transfers
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.buckets.base import Bucket
from stepctl.runs.store import RunStore


class Listener(Protocol):
    """Shows what goes on; the calls print nothing themselves."""

    def event(self, event: AnyEvent) -> None:
        """One event of the job."""

    def notice(self, text: str) -> None:
        """One line for a person."""


class Silent:
    """A listener for those who only want the result."""

    def event(self, event: AnyEvent) -> None:
        """Pass over."""

    def notice(self, text: str) -> None:
        """Pass over."""


@dataclass
class Interrupts:
    """Counts Ctrl-C; the command line adds to it from a signal handler.

    ``armed`` says that they are only counted: a run exists which answers them, or the call is on its way out. Else a
    Ctrl-C just ends the call.
    """

    count: int = 0
    seen: int = 0
    armed: bool = False

    def disarm(self) -> None:
        """From now on a Ctrl-C ends the call at once; one that nobody has answered does so now.

        Raises:
            KeyboardInterrupt: there was one.
        """
        self.armed = False
        if self.take():
            raise KeyboardInterrupt

    def take(self) -> bool:
        """Whether there was one that nobody has answered yet."""
        if self.seen < self.count:
            self.seen += 1
            return True
        return False


@dataclass
class World:
    """The surroundings of one call."""

    loaded: Loaded
    listener: Listener = field(default_factory=Silent)
    interrupts: Interrupts = field(default_factory=Interrupts)
    agree: Callable[[Sequence[str]], bool] = lambda _: True
    """Asked before anything is rented, with the plan; False gives the call up."""
    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep

    @property
    def store(self) -> RunStore:
        """The project's run store."""
        return RunStore(Path(self.loaded.settings.runs))

    def bucket(self, *, new: bool = False) -> Bucket:
        """The bucket of the settings; ``new`` takes one that does not exist yet for an empty one."""
        return self.open(self.loaded.settings.bucket, new=new)

    def open(self, url: str, *, new: bool = False) -> Bucket:
        """A bucket, with the token of the settings; transfers are shown."""
        show = Transfers(self.listener.event, self.now)
        return open_bucket(url, self.loaded.hf_token, new=new, report=show)
