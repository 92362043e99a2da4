"""Following a job to its end: events to the listener, Ctrl-C to the job or away from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stepctl.base.errors import Exit, StepctlError
from stepctl.calls.world import World
from stepctl.jobs.directory import JobDir
from stepctl.jobs.events import Saved, decode_events
from stepctl.runs.record import RunRecord
from stepctl.targets.base import Machine

POLL_SEC = 0.1
TERM_AFTER_SEC, KILL_AFTER_SEC = 5.0, 10.0
"""A cancel is a request first; TERM follows after the one bound, KILL after the other."""

Ending = Literal["ended", "detached", "timed_out"]


class TimedOut(StepctlError):
    """A wait ran into its limit; what was waited for goes on."""

    exit_code = Exit.TIMED_OUT
    code = "timed_out"


@dataclass
class Tail:
    """Reads whole new lines of an events file."""

    job: JobDir
    offset: int = 0
    saved: int = 0
    """How many checkpoints the job said to have saved on its machine, to be fetched."""

    def tell(self, world: World) -> bool:
        """Pass what is new to the listener; says whether there was anything."""
        if not self.job.events.exists():
            return False
        with self.job.events.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        events, used = decode_events(data)
        self.offset += used
        for event in events:
            self.saved += isinstance(event, Saved)
            world.listener.event(event)
        return bool(events)


@dataclass
class Canceller:
    """Ends a job without saving: by request, then TERM, then KILL of its group, each after a bound."""

    machine: Machine
    began: float | None = None
    sent: int = 0

    def begin(self, now: float) -> None:
        """Ask for the end."""
        if self.began is None:
            self.machine.request("cancel")
            self.began = now

    def press(self, now: float) -> None:
        """Go on to the next means when its time has come."""
        if self.began is None:
            return
        if self.sent == 0 and now - self.began >= TERM_AFTER_SEC:
            self.machine.signal("TERM")
            self.sent = 1
        elif self.sent == 1 and now - self.began >= TERM_AFTER_SEC + KILL_AFTER_SEC:
            self.machine.signal("KILL")
            self.sent = 2


def follow(
    world: World,
    record: RunRecord,
    machine: Machine,
    *,
    own: bool,
    cancel: bool = False,
    timeout: float | None = None,
    patience: float | None = None,
    fetch: Callable[[], None] | None = None,
) -> Ending:
    """Wait for the end of a job.

    Args:
        own: Ctrl-C asks the job to save and stop, a second one to end without saving; else Ctrl-C only leaves.
        cancel: end it without saving, from the start.
        timeout: seconds to wait at most.
        patience: a stop was asked for: after so many seconds without an event it becomes a cancel.
        fetch: brings home what a staged job has saved on its way.
    """
    job = world.store.job_dir(record.run)
    tail, canceller, began = Tail(job), Canceller(machine), world.now()
    heard, fetched = began, 0
    if cancel:
        canceller.begin(began)
    while True:
        living = machine.alive()
        machine.sync()
        if tail.tell(world) or machine.lost:
            heard = world.now()
        if job.exit_code.exists() or not living:
            tail.tell(world)
            _reap(world, machine)
            return "ended"
        if world.interrupts.take():
            if not own:
                return "detached"
            _interrupted(world, machine, canceller, job)
        if fetch is not None and tail.saved > fetched:
            fetched = tail.saved
            _fetch(world, fetch)
        if patience is not None and canceller.began is None and world.now() - heard >= patience:
            world.listener.notice(f"nothing was saved in {patience / 60:.3g} minutes: the stop becomes a cancel")
            canceller.begin(world.now())
        canceller.press(world.now())
        if timeout is not None and world.now() - began >= timeout:
            return "timed_out"
        world.wait(POLL_SEC)


def _fetch(world: World, fetch: Callable[[], None]) -> None:
    """A checkpoint on the way only shortens what could be lost: the end fetches it again when this fails."""
    try:
        fetch()
    except (StepctlError, OSError) as error:
        world.listener.notice(f"warning: a checkpoint on the way was not committed: {error}")


def _reap(world: World, machine: Machine) -> None:
    """The result is the job's last write, but for its exit: wait a moment for that."""
    for _ in range(50):
        if not machine.alive():
            return
        world.wait(POLL_SEC)


def _interrupted(world: World, machine: Machine, canceller: Canceller, job: JobDir) -> None:
    if job.requested() is None:
        machine.request("stop")
        world.listener.notice("stopping: the step at hand is finished and saved; Ctrl-C again ends without saving")
    else:
        canceller.begin(world.now())
        world.listener.notice("cancelling: nothing more is saved")
