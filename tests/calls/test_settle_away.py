"""A job that nobody can reach and that commits by itself: its pod is ended before the bucket is asked what it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.calls.left import Left
from tests.targets.runpod.acting import Desk

from stepctl.base.errors import Exit
from stepctl.calls import settle as settling
from stepctl.calls.away import machine_of
from stepctl.calls.settle import abandon_run, settle
from stepctl.calls.world import World
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report
from stepctl.targets.base import Machine

pytestmark = pytest.mark.usefixtures("paced")


def committing(desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch, *, staged: bool = False) -> Left:
    """A run whose pod commits the whole trace in the moment in which its end is asked for."""
    left = Left(desk, folder)
    done = left.project.train("a.jsonl", "--key", "a", "--target", "local", env={"STEPCTL_RUNS": "other"})
    left.cancelled(state="running", staged=staged, run=done["run"])
    lineage, hidden = folder / "checkpoints/main", folder / "hidden"
    lineage.rename(hidden)
    real = settling.let_go

    def late(world: World, record: RunRecord, machine: Machine, report: Report) -> None:
        hidden.rename(lineage)
        real(world, record, machine, report)

    monkeypatch.setattr(settling, "let_go", late)
    return left


@pytest.mark.parametrize("how", ["lost", "abandoned"])
@pytest.mark.parametrize("ends", [True, False])
def test_what_it_commits_before_its_end_counts(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, ends: bool
) -> None:
    left = committing(desk, tmp_path / "p", monkeypatch)
    desk.sandbox.quirks(left.pod, undying=0 if ends else -1)
    record = close(left, how)
    report = record.report
    assert report is not None
    assert (record.state, report["rows_done"], report["global_step"]) == ("done", 4, 1)
    assert (report["exit_code"], report["pod_alive"]) == ((0, False) if ends else (Exit.POD_ALIVE, True))
    assert report["pods"][0]["state"] == ("gone" if ends else "ending")


@pytest.mark.parametrize("how", ["lost", "abandoned"])
def test_a_staged_run_is_judged_first(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Only this side commits then: nothing comes late."""
    left = committing(desk, tmp_path / "p", monkeypatch, staged=True)
    record = close(left, how)
    assert (record.state, record.report is not None and record.report["rows_done"]) == ("cancelled", 0)
    assert desk.sandbox.pods() == []


def close(left: Left, how: str) -> RunRecord:
    record = left.world.store.load(left.run)
    if how == "abandoned":
        return abandon_run(left.world, record)
    left.world.store.job_dir(left.run).request("cancel")
    machine = machine_of(left.world.store, record)
    machine.signal("KILL")
    assert not machine.alive()
    return settle(left.world, record, machine, ended=True)
