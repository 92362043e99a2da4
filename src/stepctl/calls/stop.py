"""Ending a run from another terminal: with a saved step, or without."""

from __future__ import annotations

from stepctl.calls.attach import report_now, wait_for_end
from stepctl.calls.settle import machine_of, running, settle
from stepctl.calls.world import World
from stepctl.runs.report import Report


def stop(world: World, run: str, timeout: float | None = None) -> Report:
    """Ask a run to save after the step at hand and end; wait for that. An ended run is left as it is."""
    record = world.store.load(world.store.find(run))
    if not running(world.store, record):
        return report_now(world, settle(world, record))
    machine_of(world.store, record).request("stop")
    world.listener.notice("stopping: the step at hand is finished and saved")
    return wait_for_end(world, record, own=False, timeout=timeout)


def cancel(world: World, run: str, timeout: float | None = None) -> Report:
    """End a run without saving. What is committed by then stays; a commit of the whole beats the cancel."""
    record = world.store.load(world.store.find(run))
    if not running(world.store, record):
        return report_now(world, settle(world, record))
    world.listener.notice("cancelling: nothing more is saved")
    return wait_for_end(world, record, own=False, cancel=True, timeout=timeout)
