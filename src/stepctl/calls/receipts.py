"""Receipts of pods that have ended by themselves, and what a run's report says of its pods."""

from __future__ import annotations

from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.calls.account import Account
from stepctl.calls.away import with_pods
from stepctl.calls.reporting import exit_code as exit_of
from stepctl.calls.world import World
from stepctl.runs.pods import Attempt, PodFile
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report
from stepctl.targets.runpod.end import end_all


def close_kept(world: World, account: Account, run: str, living: set[str]) -> None:
    """A kept pod that nobody took has ended itself: its record gets its receipt.

    Args:
        living: ids of pods that are known to live; others are asked for.
    """
    file = PodFile(world.store.folder(run))
    try:
        kept = [each for each in file.load().open if each.state == "kept"] if file.exists() else []
        if kept and _is_of(account, file) and not any(_lives(account, each, living) for each in kept):
            end_all(account.api, file, account.pace, "client", "nobody took it in its time", already="pod")
            note(world, run)
    except (StepctlError, OSError):
        return


def _is_of(account: Account, file: PodFile) -> bool:
    """Whether the account can tell of a run's pods."""
    record = file.load()
    return record.account == account.api.account or (record.account is None and record.target == account.name)


def _lives(account: Account, attempt: Attempt, living: set[str]) -> bool:
    """One list without it is no proof."""
    if attempt.pod is None or attempt.pod in living:
        return True
    pod = account.api.pod(attempt.pod)
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
