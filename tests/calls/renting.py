"""A run that has rented a pod at the emulated provider."""

from __future__ import annotations

from tests.targets.runpod.acting import RUN, Desk

from stepctl.calls.world import World
from stepctl.runs.pods import PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord


def interrupt(_: float) -> None:
    """A Ctrl-C while the clock is waited for."""
    raise KeyboardInterrupt


def run_with_pod(world: World, desk: Desk, run: str = RUN, target: str = "cloud") -> PodFile:
    """A run of the project, and the desk at it."""
    options = {"kind": "runpod", "api_url": desk.sandbox.url, "max_hours": 1.0, "poll_seconds": 10.0}
    record = RunRecord(
        run=run,
        created_at="",
        updated_at="",
        state="running",
        method="sft",
        model="m",
        bucket="b",
        lineage="main",
        target=target,
        target_options=options,
        key=None,
        trace=TraceRecord(paths=(), sha256="", rows_total=0),
        eval=None,
        parent="",
        from_step=0,
        steps_planned=1,
        new_root=True,
        client=ProcessId(pid=1, started=""),
    )
    world.store.create(record)
    desk.file = PodFile(world.store.folder(run))
    desk.file.save(PodRecord(run=run, target=target, account=desk.api.account))
    desk.make(run=run)
    return desk.file
