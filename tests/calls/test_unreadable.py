"""Runs whose record cannot be read: which a call may pass over, and which it must not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.project import Project, rows

from stepctl.base.errors import StepctlError
from stepctl.calls.unreadable import pass_over
from stepctl.runs.store import RunStore


def _never_started(run: Path) -> None:
    pass


def _elsewhere(run: Path) -> None:
    (run / "job.json").write_text(json.dumps({"bucket": "/b", "lineage": "other", "version": 99}))


def _started(run: Path) -> None:
    (run / "job.json").write_text(json.dumps({"bucket": "/b", "lineage": "main"}))


def _ended(run: Path) -> None:
    _started(run)
    (run / "exit_code").write_text("0")


def _saved(run: Path) -> None:
    _ended(run)
    (run / "out/00000001-r").mkdir(parents=True)
    (run / "out/00000001-r/manifest.json").write_text("{}")


def _unreadable_job(run: Path) -> None:
    (run / "job.json").write_text("{")


def _store(folder: Path, make: Callable[[Path], None]) -> RunStore:
    run = folder / "runs/r"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{")
    make(run)
    return RunStore(folder / "runs")


@pytest.mark.parametrize("make", [_never_started, _elsewhere, _ended])
def test_what_cannot_concern_the_call_is_passed_over(tmp_path: Path, make: Callable[[Path], None]) -> None:
    store = _store(tmp_path, make)
    _, (found,) = store.all()
    warning = pass_over(store, found, "/b", "main")
    assert str(tmp_path / "runs/r/run.json") in warning
    assert f"mv {tmp_path}/runs/r {tmp_path}/" in warning


@pytest.mark.parametrize(("make", "why"), [(_started, "training"), (_unreadable_job, "training"), (_saved, "saved")])
def test_what_may_be_running_or_hold_work_is_not(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    store = _store(tmp_path, make)
    _, (found,) = store.all()
    with pytest.raises(StepctlError, match=why) as error:
        pass_over(store, found, "/b", "main")
    assert str(tmp_path / "runs/r/run.json") in error.value.message
    assert error.value.code == "unreadable_run"


def test_one_damaged_record_stops_no_command(project: Project, trained: Callable[[int], list[str]]) -> None:
    trained(2)
    path = project.runs()[0] / "run.json"
    path.write_text("{")
    listed = project.call("runs", "ls", "--json")
    answer = json.loads(listed.stdout)
    assert (len(answer["runs"]), answer["unreadable"]) == (1, [str(path)])
    assert str(path) in listed.stderr
    assert project.status()["unreadable"] == [str(path)]
    assert project.train("0.jsonl", "--key", "k0")["replayed"]
    done = project.run("train", project.trace("c.jsonl", rows(4, 50)))
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stderr
    assert project.call("lineage", "rollback", "--to", 1).returncode == 0
    (path.parent / "exit_code").unlink()
    refused = project.train("c.jsonl", code=1)["error"]
    assert refused["code"] == "unreadable_run"
    assert project.call("lineage", "rollback", "--to", 2).returncode == 1
