"""An error of whatever kind says so when a pod may be alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepctl.base.errors import Exit, StepctlError
from stepctl.calls.away import blaming_pods
from stepctl.cli.errors import report
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.runs.store import RunStore

RUN = "20261130T041502917-1f9c0a"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A run with one pod at $0.44 an hour."""
    store = RunStore(tmp_path / "runs")
    store.folder(RUN).mkdir(parents=True)
    attempt = Attempt(
        name=f"stepctl-{RUN}-1",
        state="made",
        asked_at="",
        gpu_type=None,
        gpu_count=1,
        listed_price=0.44,
        cloud="SECURE",
        pod="pod1",
    )
    PodFile(store.folder(RUN)).save(PodRecord(run=RUN, target="cloud", attempts=[attempt]))
    return store


def _ends(store: RunStore, error: Exception) -> int:
    with pytest.raises(Exception) as caught, blaming_pods(store, RUN):
        raise error
    return report(caught.value, json_mode=False)


def test_a_bug_with_an_open_pod_tells_the_pod_first(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert _ends(store, ValueError("the text of a row")) == Exit.POD_ALIVE
    said = capsys.readouterr().err
    assert "error: this is a bug in stepctl: ValueError at calls/away.py:" in said
    assert "still costs: a pod may still be alive: pod1 ($0.44 an hour)" in said
    assert f"next: stepctl pod rm {RUN}; then repeat the command with STEPCTL_DEBUG=1 and report what it prints" in said
    assert "row" not in said


def test_a_bug_with_an_open_pod_keeps_its_cause(store: RunStore) -> None:
    first = KeyError("x")
    with pytest.raises(StepctlError) as caught, blaming_pods(store, RUN):
        raise first
    assert caught.value.__cause__ is first


def test_a_bug_without_an_open_pod_stays_as_it_is(store: RunStore) -> None:
    PodFile(store.folder(RUN)).update(lambda record: record.attempts.clear())
    error = ValueError()
    with pytest.raises(ValueError) as caught, blaming_pods(store, RUN):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [ValueError(), StepctlError("no room"), OSError(28, "no room", "/x")])
def test_a_record_that_cannot_be_read_may_hold_a_pod(
    store: RunStore, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    path = PodFile(store.folder(RUN)).path
    path.write_text("{")
    assert _ends(store, error) == Exit.POD_ALIVE
    said = capsys.readouterr().err
    assert f"still costs: a pod may still be alive, and the record of it cannot be read: {path}" in said
    assert "next: stepctl pod ls" in said
