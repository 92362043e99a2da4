"""Following a run again, from whatever state it is in."""

from __future__ import annotations

import msgspec

from stepctl.base.errors import Exit
from stepctl.calls.follow import follow
from stepctl.calls.reporting import close, read_events, report_of, with_events
from stepctl.calls.settle import commit_pending, machine_of, settle
from stepctl.calls.world import World
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report
from stepctl.targets.base import Machine


def report_now(world: World, record: RunRecord) -> Report:
    """The report of a run as it is: the final one when it has ended."""
    if record.report is not None and record.state not in UNFINISHED:
        return msgspec.convert(record.report, Report)
    report = with_events(report_of(record), read_events(world.store.job_dir(record.run)))
    report.global_step = report.from_step + len(report.losses)
    return close(report, record)


def wait_for_end(
    world: World,
    record: RunRecord,
    *,
    own: bool,
    machine: Machine | None = None,
    cancel: bool = False,
    timeout: float | None = None,
) -> Report:
    """Follow a run until it ends, and give it its final state.

    Args:
        own: this call started it: Ctrl-C stops it, instead of leaving it alone.
        machine: the connection that started it.
        cancel: end it without saving.
        timeout: seconds to wait at most; then the report has exit code 124.
    """
    world.interrupts.armed = True
    while record.state in UNFINISHED and record.job is None:
        # Another call is starting it.
        settled = settle(world, record)
        if settled.state not in UNFINISHED:
            return report_now(world, settled)
        world.wait(0.1)
        record = world.store.load(record.run)
    if record.state in UNFINISHED:
        machine = machine or machine_of(world.store, record)
        ending = follow(world, record, machine, own=own, cancel=cancel, timeout=timeout)
        if ending != "ended":
            report = report_now(world, record)
            report.exit_code = int(Exit.DETACHED if ending == "detached" else Exit.TIMED_OUT)
            return report
        record = settle(world, world.store.load(record.run), machine)
    return report_now(world, record)


def attach(world: World, run: str, timeout: float | None = None) -> Report:
    """Follow a run, or say how it ended; a checkpoint that waits for its commit is committed.

    A run that never got its examples is returned in its state ``needs_trace``: see ``calls/restart.py``.

    Raises:
        StepctlError: no such run, or the bucket still refuses.
    """
    record = world.store.load(world.store.find(run))
    report = wait_for_end(world, record, own=False, timeout=timeout)
    if report.state == "commit_pending":
        record = commit_pending(world, world.store.load(record.run))
        world.listener.notice("the checkpoint that was saved here is committed")
        return report_now(world, record)
    return report
