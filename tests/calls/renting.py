"""A run that has rented a pod at the emulated provider."""

from __future__ import annotations

from tests.targets.runpod.acting import RUN, Desk, run_record

from stepctl.calls.world import World
from stepctl.runs.pods import PodFile, PodRecord


def interrupt(_: float) -> None:
    """A Ctrl-C while the clock is waited for."""
    raise KeyboardInterrupt


def run_with_pod(world: World, desk: Desk, run: str = RUN, target: str = "cloud") -> PodFile:
    """A run of the project, and the desk at it."""
    options = {"kind": "runpod", "api_url": desk.sandbox.url, "max_hours": 1.0, "poll_seconds": 10.0}
    world.store.create(run_record(run, target=target, target_options=options))
    desk.file = PodFile(world.store.folder(run))
    desk.file.save(PodRecord(run=run, target=target, account=desk.api.account))
    desk.make(run=run)
    return desk.file
