"""The rules of exactly-once, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stepctl.base.errors import LineageConflict
from stepctl.calls.decide import Ask, decide
from stepctl.lineage.records import LedgerLine


def line_of(
    step: int,
    *,
    key: str | None = None,
    sha: str = "A",
    done: int = 8,
    run: str = "r",
    parent: str = "root",
    exact: bool | None = None,
) -> LedgerLine:
    return LedgerLine(
        checkpoint=f"{step:08d}-{run}",
        parent=parent,
        run=run,
        key=key,
        trace_sha256=sha,
        rows_done=done,
        rows_total=8,
        from_step=step - 1,
        step=step,
        loss=1.0,
        created_at="",
        exact=exact,
    )


def _decide(ask: Ask, *ledger: LedgerLine) -> object:
    return decide(ask, ledger, "main", ledger[-1].step if ledger else 0)


def test_an_empty_lineage_trains_from_the_first_row() -> None:
    assert decide(Ask(sha256="A"), (), "main", 0).rows_start == 0


def test_a_finished_key_is_replayed_and_an_unfinished_one_continued() -> None:
    assert decide(Ask(sha256="A", key="k"), (line_of(1, key="k"),), "main", 1).replay == line_of(1, key="k")
    unfinished = line_of(1, key="k", done=4)
    assert decide(Ask(sha256="A", key="k"), (unfinished, line_of(2, sha="B")), "main", 2).rows_start == 4


def test_a_key_belongs_to_one_trace() -> None:
    with pytest.raises(LineageConflict, match="another trace"):
        _decide(Ask(sha256="B", key="k"), line_of(1, key="k"))


def test_an_unfinished_head_needs_a_word() -> None:
    with pytest.raises(LineageConflict, match="4 of its 8 rows"):
        _decide(Ask(sha256="A"), line_of(1, done=4))
    assert decide(Ask(sha256="A", go_on=True), (line_of(1, done=4),), "main", 1).rows_start == 4


def test_an_unfinished_trace_that_is_not_the_head_may_start_over() -> None:
    ledger = (line_of(1, done=4), line_of(2, sha="B"))
    assert decide(Ask(sha256="A"), ledger, "main", 2).rows_start == 0
    assert decide(Ask(sha256="A", go_on=True), ledger, "main", 2).rows_start == 4


def test_a_trace_left_unfinished_is_pointed_out() -> None:
    decision = decide(Ask(sha256="B"), (line_of(1, done=4),), "main", 1)
    assert [w["code"] for w in decision.warnings] == ["left_unfinished"]


@pytest.mark.parametrize("earlier", [None, "k"])
def test_a_new_key_trains_a_known_trace_and_that_is_said(earlier: str | None) -> None:
    decision = decide(Ask(sha256="A", key="new"), (line_of(1, key=earlier),), "main", 1)
    assert (decision.replay, decision.rows_start, decision.key) == (None, 0, "new")
    assert [w["code"] for w in decision.warnings] == ["trained_before"]


@pytest.mark.parametrize(("key", "way"), [(None, "--continue"), ("k", "--key k")])
def test_rows_that_are_trained_again_are_counted(key: str | None, way: str) -> None:
    (warning,) = decide(Ask(sha256="A", key="new"), (line_of(1, key=key, done=4),), "main", 1).warnings
    assert warning["code"] == "trained_before"
    assert "rows 1 to 4" in str(warning["message"])
    assert way in str(warning["message"])


def test_both_are_said_when_another_trace_is_left_unfinished() -> None:
    ledger = (line_of(1), line_of(2, sha="B", done=4))
    decision = decide(Ask(sha256="A", key="new"), ledger, "main", 2)
    assert [w["code"] for w in decision.warnings] == ["trained_before", "left_unfinished"]


def test_expect_step() -> None:
    with pytest.raises(LineageConflict, match="at step 1, not at step 0"):
        _decide(Ask(sha256="B", expect_step=0), line_of(1))
    assert decide(Ask(sha256="A", key="k", expect_step=0), (line_of(1, key="k"),), "main", 1).replay
    assert decide(Ask(sha256="B", fresh=True, expect_step=0), (line_of(1),), "main", 1).rows_start == 0


def test_fresh_is_answered_from_the_root_that_its_key_made() -> None:
    later = (line_of(1, run="first"), line_of(2, key="k"))
    decision = decide(Ask(sha256="A", key="k", fresh=True), later, "main", 2)
    assert decision.replay is None
    assert decision.fresh
    own = line_of(1, key="k", parent="root-r")
    assert decide(Ask(sha256="A", key="k", fresh=True), (own,), "main", 1).replay == own


def test_a_stopped_fresh_start_goes_on_in_the_root_it_made() -> None:
    own = line_of(1, key="k", parent="root-r", done=4)
    decision = decide(Ask(sha256="A", key="k", fresh=True), (own,), "main", 1)
    assert (decision.rows_start, decision.fresh) == (4, False)


def test_rows_are_counted_among_those_that_train() -> None:
    """Other settings may leave other rows out: then it cannot be told which are left."""
    line = msgspec.structs.replace(line_of(1, key="k", done=4), rows_sha256="r")
    total = line.rows_total
    for ask in (Ask(sha256="A", key="k"), Ask(sha256="A", go_on=True)):
        assert decide(replace(ask, rows_total=total, rows_sha256="r"), (line,), "main", 1).rows_start == 4
        assert decide(replace(ask, rows_total=total), (line,), "main", 1).rows_start == 4
        others: list[dict[str, Any]] = [{"rows_total": total - 1}, {"rows_total": total, "rows_sha256": "s"}]
        for changed in others:
            with pytest.raises(LineageConflict) as caught:
                decide(replace(ask, **changed), (line,), "main", 1)
            assert caught.value.code == "other_rows"
            assert "--skip-bad-rows" in caught.value.next
    done = msgspec.structs.replace(line, rows_done=total)
    assert decide(Ask(sha256="A", key="k", rows_total=1, rows_sha256="s"), (done,), "main", 1).replay == done
