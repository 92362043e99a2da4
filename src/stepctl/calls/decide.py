"""What a call does to its lineage: train from some row, answer from the ledger, or refuse. Pure: no files, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepctl.base.errors import LineageConflict
from stepctl.lineage.ledger import by_key, by_trace
from stepctl.lineage.manifest import of
from stepctl.lineage.records import LedgerLine


@dataclass(frozen=True)
class Ask:
    """The part of a call that concerns exactly-once."""

    sha256: str
    key: str | None = None
    go_on: bool = False
    fresh: bool = False
    expect_step: int | None = None
    rows_total: int | None = None
    rows_sha256: str = ""
    """Which rows train, see :class:`~stepctl.traces.rows.Judgement`; empty when that is not known."""


@dataclass(frozen=True)
class Decision:
    """``replay`` is the ledger line that answers the call, else None; training starts at ``rows_start``.

    ``fresh`` says that it starts at a root; ``key`` is the one that the run goes by.
    """

    replay: LedgerLine | None = None
    rows_start: int = 0
    fresh: bool = False
    key: str | None = None
    warnings: list[dict[str, object]] = field(default_factory=list)


def _warn(code: str, message: str) -> list[dict[str, object]]:
    return [{"code": code, "message": message}]


def begun_by(ledger: Sequence[LedgerLine], key: str | None) -> bool:
    """Whether the call with ``key`` made the start of this chain.

    A repeated call of a fresh start goes on from, or is answered from, the start it made; a key that came later
    belongs to what is left behind.
    """
    return key is not None and bool(ledger) and ledger[0].key == key


def decide(ask: Ask, ledger: Sequence[LedgerLine], lineage: str, head_step: int) -> Decision:
    """Apply the rules of exactly-once (docs/lineage.md).

    Args:
        ask: what the call wants.
        ledger: the head's ancestry, oldest first.
        lineage: its name, for messages.
        head_step: the step of the head.

    Raises:
        LineageConflict: the key belongs to another trace, the head is not at the expected step, or the trace is
            unfinished and nobody said whether to continue.
    """
    line = by_key(ledger, ask.key) if ask.key is not None else None
    if ask.fresh:
        line = line if begun_by(ledger, ask.key) else None
        if line is None:
            _expect(ask, 0, lineage)
            return Decision(fresh=True, key=ask.key)
    if line is not None and line.trace_sha256 != ask.sha256:
        raise LineageConflict(
            f"the key {ask.key!r} was used for another trace (run {line.run}, sha256 {line.trace_sha256[:12]})",
            safe="nothing was trained",
            next="give each trace its own --key",
            code="key_conflict",
            details={"key": ask.key, "run": line.run, "trace_sha256": line.trace_sha256},
        )
    if line is None and ask.key is None:
        line = _without_key(ask, ledger)
    if line is not None and line.rows_done >= line.rows_total:
        if ask.key is not None or ask.go_on:
            return Decision(replay=line)
        _expect(ask, head_step, lineage)
        text = f"this trace was trained before, to step {line.step} (run {line.run}); it is trained again"
        return Decision(warnings=_warn("trained_before", f"{text}: give a --key to prevent that"))
    _expect(ask, head_step, lineage)
    if line is not None:
        _require_same_rows(ask, line)
        # Going on without naming the key that the trace has finishes that key too: it must not train these rows again.
        return Decision(rows_start=line.rows_done, key=line.key)
    return Decision(key=ask.key, warnings=_again(ask, ledger))


def _without_key(ask: Ask, ledger: Sequence[LedgerLine]) -> LedgerLine | None:
    line = by_trace(ledger, ask.sha256)
    if line is None or line.rows_done >= line.rows_total or ask.go_on:
        return line
    if line != ledger[-1]:
        return None
    raise LineageConflict(
        f"this trace is unfinished: {line.rows_done} of its {line.rows_total} rows are trained (run {line.run})",
        safe=f"the head is at step {line.step}",
        next="--continue trains the rest",
        code="unfinished_trace",
        details={"rows_done": line.rows_done, "rows_total": line.rows_total, "run": line.run},
    )


def _require_same_rows(ask: Ask, line: LedgerLine) -> None:
    """Rows are counted among those that train: other settings may leave others out, and the count means other rows."""
    same = ask.rows_total in (None, line.rows_total)
    if same and (not ask.rows_sha256 or line.rows_sha256 in (None, ask.rows_sha256)):
        return
    raise LineageConflict(
        f"{line.rows_done} of {line.rows_total} rows of this trace are trained (run {line.run}), and with today's "
        "settings other rows of it train: which are left cannot be told",
        safe="nothing was trained",
        next="give max_length, on_long, thinking and --skip-bad-rows as that run had them (stepctl runs show RUN), or "
        "the rest as a trace of its own",
        code="other_rows",
        details={"run": line.run, "rows_done": line.rows_done, "rows_total": line.rows_total},
    )


def _expect(ask: Ask, head_step: int, lineage: str) -> None:
    if ask.expect_step is not None and ask.expect_step != head_step:
        raise LineageConflict(
            f"the head of lineage {lineage!r} is at step {head_step}, not at step {ask.expect_step}",
            safe="nothing was trained",
            next=f"stepctl status{of(lineage)}",
            code="other_step",
            details={"head_step": head_step, "expect_step": ask.expect_step},
        )


def _again(ask: Ask, ledger: Sequence[LedgerLine]) -> list[dict[str, object]]:
    """What to know when a trace is trained from its first row: that some of it was before, or that another is left."""
    line = by_trace(ledger, ask.sha256)
    if line is None:
        return _abandoned(ledger)
    key = f", key {line.key}" if line.key else ""
    if line.rows_done >= line.rows_total:
        text = f"this trace was trained before, to step {line.step} (run {line.run}{key}); it is trained again"
        return [*_warn("trained_before", text), *_abandoned(ledger)]
    text = f"rows 1 to {line.rows_done} of this trace were trained before, to step {line.step} (run {line.run}{key})"
    rest = f"--key {line.key}" if line.key else "--continue"
    return _warn("trained_before", f"{text}; they are trained again: {rest} alone would train the rest")


def _abandoned(ledger: Sequence[LedgerLine]) -> list[dict[str, object]]:
    if not ledger or ledger[-1].rows_done >= ledger[-1].rows_total:
        return []
    last = ledger[-1]
    return _warn(
        "left_unfinished",
        f"the trace before this one was left at row {last.rows_done} of {last.rows_total} (run {last.run})",
    )
