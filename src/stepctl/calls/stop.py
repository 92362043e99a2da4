"""Ending a run from another terminal: with a saved step, or without."""

from __future__ import annotations

from stepctl.base.errors import UsageError
from stepctl.calls.attach import report_now, wait_for_end
from stepctl.calls.away import is_away, machine_of, teller
from stepctl.calls.settle import abandon_run, running, settle
from stepctl.calls.world import World
from stepctl.runs.process import alive
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report


def stop(world: World, run: str, timeout: float | None = None) -> Report:
    """Ask a run to save after the step at hand and end; wait for that. An ended run is left as it is."""
    record = world.store.load(world.store.find(run))
    if not running(world.store, record):
        return report_now(world, settle(world, record))
    if is_away(record) and record.job is None:
        return _give_up(world, record, timeout)
    machine_of(world.store, record, teller(world)).request("stop")
    world.listener.notice("stopping: the step at hand is finished and saved")
    return wait_for_end(world, record, own=False, stop=True, timeout=timeout)


def cancel(world: World, run: str, timeout: float | None = None, *, abandon: bool = False) -> Report:
    """End a run without saving. What is committed by then stays; a commit of the whole beats the cancel.

    Args:
        abandon: close the run even when its machine cannot be reached; what is on it alone is given up.
    """
    record = world.store.load(world.store.find(run))
    if abandon:
        return _abandon(world, record)
    if not running(world.store, record):
        return report_now(world, settle(world, record))
    if is_away(record) and record.job is None:
        return _give_up(world, record, timeout)
    world.listener.notice("cancelling: nothing more is saved")
    return wait_for_end(world, record, own=False, cancel=True, timeout=timeout)


def _abandon(world: World, record: RunRecord) -> Report:
    """Close a run on another machine with what the bucket has of it.

    Raises:
        UsageError: the run is on this machine, or somebody follows it.
    """
    if not is_away(record):
        raise UsageError(f"run {record.run} is on this machine", next=f"stepctl train cancel {record.run}")
    if record.state not in UNFINISHED:
        return report_now(world, record)
    if alive(record.client):
        raise UsageError(
            f"another command is following run {record.run}", next="end that one first, or leave --abandon out"
        )
    with world.store.ending(record.run):
        return report_now(world, abandon_run(world, world.store.load(record.run)))


def _give_up(world: World, record: RunRecord, timeout: float | None) -> Report:
    """Ask the call that is getting a machine for the run to let it go again."""
    world.store.job_dir(record.run).request("cancel")
    world.listener.notice("cancelling: the machine is let go, and nothing was trained yet")
    return wait_for_end(world, record, own=False, cancel=True, timeout=timeout)
