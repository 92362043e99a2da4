"""Ledgers: one chain from a root, and what they answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stepctl.lineage.ledger import LedgerBroken, by_key, by_trace, decode_ledger, ledger_for, runs_of
from stepctl.lineage.records import LedgerLine

FIRST = LedgerLine(
    checkpoint="00000002-a",
    parent="root",
    run="a",
    key="k",
    trace_sha256="t",
    rows_done=4,
    rows_total=8,
    from_step=0,
    step=2,
    loss=None,
    created_at="2026",
)
SECOND = replace(FIRST, checkpoint="00000004-a", parent="00000002-a", rows_done=8, step=4)
THIRD = replace(SECOND, checkpoint="00000005-b", parent="00000004-a", run="b", key=None, step=5, from_step=4)


def test_a_run_that_committed_on_its_way_counts_by_its_last_line() -> None:
    ledger = decode_ledger(ledger_for([FIRST, SECOND], THIRD))
    assert ledger == (FIRST, SECOND, THIRD)
    assert runs_of(ledger) == {"a": SECOND, "b": THIRD}
    assert by_key(ledger, "k") == SECOND
    assert by_trace(ledger, "t") == THIRD
    assert by_trace(ledger, "other") is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ledger_for([], SECOND),
        lambda: ledger_for([FIRST], THIRD),
        lambda: ledger_for([FIRST], replace(SECOND, step=5)),
        lambda: ledger_for([FIRST], replace(SECOND, checkpoint="00000002-b", run="b", step=2)),
        lambda: ledger_for([FIRST, SECOND], replace(THIRD, parent="root")),
        lambda: decode_ledger(b""),
        lambda: decode_ledger(b"\xff\n"),
        lambda: decode_ledger(ledger_for([FIRST], SECOND)[:-20]),
        lambda: decode_ledger(ledger_for([], FIRST) * 2),
    ],
)
def test_what_is_no_chain_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(LedgerBroken):
        make()
