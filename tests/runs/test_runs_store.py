"""Run records: durable, found by prefix, never set back."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stepctl.base.errors import StepctlError, UsageError
from stepctl.base.names import new_run_id
from stepctl.runs.process import alive, identify, myself
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord
from stepctl.runs.store import RunStore


def _record(run: str, state: str = "created") -> RunRecord:
    return RunRecord(
        run=run,
        created_at="",
        updated_at="",
        state=state,
        method="sft",
        model="m",
        bucket="/b",
        lineage="main",
        target="local",
        key=None,
        trace=TraceRecord(paths=("a",), sha256="0", rows_total=1),
        eval=None,
        parent="root",
        from_step=0,
        steps_planned=1,
        new_root=False,
        client=myself(),
    )


def test_ids_sort_by_time() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [new_run_id(start + timedelta(milliseconds=i)) for i in range(50)]
    assert ids == sorted(ids)


def test_words_for_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    with pytest.raises(UsageError, match="no run"):
        store.find("last")
    for run in ("2026a", "2026b"):
        store.create(_record(run))
    assert store.find("last") == "2026b"
    assert store.find("2026a") == "2026a"
    with pytest.raises(UsageError, match="could be any of"):
        store.find("2026")


def test_an_ended_run_stays_ended(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create(_record("r", "done"))

    def back(record: RunRecord) -> None:
        record.state = "running"

    assert store.update("r", back).state == "done"


def test_unfinished_runs_are_those_of_the_lineage(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for run, state in (("a", "done"), ("b", "running"), ("c", "commit_pending"), ("d", "needs_trace")):
        store.create(_record(run, state))
    (tmp_path / "d/run.json").write_text("{")
    found, unreadable = store.unfinished("/b", "main")
    assert [r.run for r in found] == ["b", "c"]
    assert [(each.run, each.path) for each in unreadable] == [("d", tmp_path / "d/run.json")]
    assert store.unfinished("/b", "other")[0] == []


def test_a_damaged_or_newer_record_is_said_so(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create(_record("r"))
    path = tmp_path / "r/run.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(StepctlError, match="newer"):
        store.load("r")
    path.write_text("{")
    with pytest.raises(StepctlError, match="cannot be read"):
        store.load("r")


def test_a_process_is_not_its_number() -> None:
    me = myself()
    assert alive(me)
    assert not alive(ProcessId(pid=me.pid, started="another boot:1"))
    assert not alive(None)
    child = subprocess.Popen(["true"])
    while identify(child.pid) is not None:
        os.sched_yield()
    # It has ended, and nobody has reaped it yet.
    assert identify(child.pid) is None
    child.wait()
