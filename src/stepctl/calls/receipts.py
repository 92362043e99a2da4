"""Receipts of pods that have ended by themselves, and what a run's report says of its pods."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.names import utc_now
from stepctl.calls.account import Account, account
from stepctl.calls.away import with_pods
from stepctl.calls.reporting import exit_code as exit_of
from stepctl.calls.world import World
from stepctl.runs.pods import Attempt, PodFile
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report
from stepctl.targets.runpod.end import end_all
from stepctl.targets.runpod.records import moment


def close_kept(world: World, asked: Account, run: str, living: set[str]) -> None:
    """A kept pod that nobody took has ended itself: its record gets its receipt.

    Args:
        living: ids of pods that are known to live; others are asked for.
    """
    file = PodFile(world.store.folder(run))
    try:
        kept = [each for each in file.load().open if each.state == "kept"] if file.exists() else []
        if kept and _is_of(asked, file) and not any(_lives(asked, each, living) for each in kept):
            end_all(asked.api, file, asked.pace, "client", "nobody took it in its time", already="pod")
            note(world, run)
    except (StepctlError, OSError):
        return


def close_lapsed(world: World, record: RunRecord) -> RunRecord:
    """As :func:`close_kept`, for one run whose kept pod's time is over by the clock here; what cannot be asked now is
    passed over."""
    kept = [each for each in PodFile(world.store.folder(record.run)).load().open if each.state == "kept"]
    limits = [moment(each.kept_until) for each in kept]
    if not any(until is not None and until < utc_now() for until in limits):
        return record
    with suppress(StepctlError), account(world, None, record.run) as asked:
        close_kept(world, asked, record.run, set())
    return world.store.load(record.run)


def _is_of(asked: Account, file: PodFile) -> bool:
    """Whether the account asked can tell of a run's pods."""
    record = file.load()
    return record.account == asked.api.account or (record.account is None and record.target == asked.name)


def _lives(asked: Account, attempt: Attempt, living: set[str]) -> bool:
    """One list without it is no proof."""
    if attempt.pod is None or attempt.pod in living:
        return True
    pod = asked.api.pod(attempt.pod)
    return pod is not None and not pod.ended


def note(world: World, run: str) -> None:
    """The report of a run that has ended says what its pods are now."""

    def change(record: RunRecord) -> None:
        if record.report is not None:
            report = with_pods(msgspec.convert(record.report, Report), world.store, run)
            report.exit_code = exit_of(report)
            data: dict[str, Any] = msgspec.to_builtins(report)
            record.report = data

    if run in world.store.names():
        world.store.update(run, change)
