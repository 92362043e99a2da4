"""Following a run again, from whatever state it is in."""

from __future__ import annotations

import msgspec

from stepctl.base.errors import Exit, NotCommitted, StepctlError
from stepctl.calls.follow import POLL_SEC, follow
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
    began = world.now()
    while record.state in UNFINISHED and record.job is None:
        # Another call is starting it.
        settled = settle(world, record)
        if settled.state not in UNFINISHED:
            return report_now(world, settled)
        if world.interrupts.take():
            return _left(world, record, Exit.DETACHED)
        if timeout is not None and world.now() - began >= timeout:
            return _left(world, record, Exit.TIMED_OUT)
        world.wait(POLL_SEC)
        record = world.store.load(record.run)
    if record.state in UNFINISHED:
        machine = machine or machine_of(world.store, record)
        rest = None if timeout is None else timeout - (world.now() - began)
        ending = follow(world, record, machine, own=own, cancel=cancel, timeout=rest)
        if ending != "ended":
            return _left(world, record, Exit.DETACHED if ending == "detached" else Exit.TIMED_OUT)
        record = settle(world, world.store.load(record.run), machine)
    return report_now(world, record)


def _commit(world: World, record: RunRecord) -> RunRecord:
    try:
        return commit_pending(world, record)
    except (OSError, StepctlError) as error:
        raise NotCommitted(
            f"the bucket still refuses the checkpoint of run {record.run}: {error}",
            safe=f"it is saved in {world.store.job_dir(record.run).out}",
            next=f"mend that, then: stepctl train attach {record.run}",
        ) from error


def _left(world: World, record: RunRecord, code: Exit) -> Report:
    report = report_now(world, record)
    report.exit_code = int(code)
    return report


def attach(world: World, run: str, timeout: float | None = None) -> Report:
    """Follow a run, or say how it ended; a checkpoint that waits for its commit is committed.

    A run that never got its examples is returned in its state ``needs_trace``: see ``calls/restart.py``.

    Raises:
        NotCommitted: the bucket still refuses.
        StepctlError: no such run.
    """
    record = world.store.load(world.store.find(run))
    report = wait_for_end(world, record, own=False, timeout=timeout)
    if report.state == "commit_pending":
        record = _commit(world, world.store.load(record.run))
        if record.state != "failed":
            world.listener.notice("the checkpoint that was saved here is committed")
        return report_now(world, record)
    return report
