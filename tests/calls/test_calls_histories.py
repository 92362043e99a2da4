"""Short histories that once went wrong, told with the operations of the random ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calls import operations_held as do
from tests.calls.history import History
from tests.calls.operation import Act, Draw, job_of
from tests.calls.operations import call_once
from tests.calls.projects import Call
from tests.calls.rules import Ask
from tests.doubles.forked import hold, install
from tests.doubles.project import tokenizer_folder

from stepctl.runs.report import Report

DRAW = Draw(at=0, kind="new", rows=4, group=2, keep=3, every_step=True, flag=False, pick=0, number=0, writes=0)


@pytest.fixture
def h(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    install(monkeypatch)
    history = History(tokenizer_folder(tmp_path / "model"), Counter())
    yield history
    history.close()


def call(h: History, *, fresh: bool = False, key: str | None = None, every_step: bool = True, keep: int = 3) -> Call:
    """Two steps on a new trace."""
    return Call(Ask(h.new_trace(4), fresh=fresh, key=key), group=2, keep=keep, every_step=every_step)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("end", [do.let_it_end, do.stop_it, do.cancel_it, do.kill_its_job])
def test_a_commit_on_the_way_fails_after_its_manifest(h: History, end: Act, fresh: bool) -> None:
    """It counts all the same, and makes a fresh root the start."""
    a, b = h.projects
    call_once(h, b, call(h))
    assert do.start(h, a, call(h, fresh=fresh), "manifest_stored:1" if fresh else "manifest_stored:3", follow=True)
    do.the_bucket_fails(h, a, DRAW)
    end(h, a, DRAW)


def test_a_checkpoint_in_doubt_is_extended_even_if_it_is_pruned(h: History) -> None:
    """Its commit failed after its manifest was stored, and another writer went on from it."""
    a, b = h.projects
    assert do.start(h, a, call(h), "manifest_stored:1", follow=True)
    do.the_bucket_fails(h, a, DRAW)
    call_once(h, b, call(h, keep=1))
    assert len(h.rules.alive) == 1
    do.finish(h, a)


def test_what_a_dead_job_saved_becomes_a_fork_of_its_own_checkpoint(h: History) -> None:
    """Another writer has extended the one before it meanwhile; the run's report names the newest."""
    a, b = h.projects
    assert do.start(h, a, call(h), "step:2", follow=True)
    call_once(h, b, call(h))
    live = job_of(a)
    hold(a.path, "kill files_stored:2")
    report = h.wait_for_job(a)
    h.adopt(live.run)
    assert isinstance(report, Report)
    assert report.forked
    h.ended(a, live.run, report, 2)
    h.check()


@pytest.mark.parametrize("rows", [3, 4])
def test_two_writers_and_a_copy_that_loses_the_times(h: History, rows: int) -> None:
    call_once(h, h.projects[0], call(h))
    do.two_writers(h, h.projects[0], DRAW._replace(rows=rows, every_step=False))
    call_once(h, h.projects[1], call(h))


def test_a_parent_that_is_pruned_meanwhile(h: History) -> None:
    """Nothing is damaged: the call is to be repeated."""
    a, b = h.projects
    call_once(h, b, call(h))
    assert do.start(h, a, call(h), "model", follow=True)
    call_once(h, b, call(h, keep=1))
    live = job_of(a)
    report = h.release(a)
    h.ended(a, live.run, report, None, "failed")
    assert report.error["code"] == "parent_pruned"
    assert "again" in report.error["next"]
    h.check()


@pytest.mark.parametrize("number", range(4))
def test_a_race(h: History, number: int) -> None:
    call_once(h, h.projects[0], call(h))
    for _ in range(3):
        do.a_race(h, h.projects[0], DRAW._replace(number=number))
