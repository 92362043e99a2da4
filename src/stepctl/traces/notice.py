"""What a person should know of a trace that is not bad: noticed row by row, told once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepctl.traces.mask import Prepared
from stepctl.traces.preference import scores_are_reversed
from stepctl.traces.read import RawRow, printable
from stepctl.traces.rows import KtoRow, Row, RowWarning
from stepctl.traces.shapes import Example, Pair
from stepctl.traces.tokenizer import TextTokenizer

SHOWN = 10


@dataclass
class Notices:
    """What was noticed so far. ``everything``: every token is supervised."""

    tokenizer: TextTokenizer
    max_length: int
    everything: bool
    ignored: dict[str, None] = field(default_factory=dict)
    seen: set[Example] = field(default_factory=set)
    reversed: list[RawRow] = field(default_factory=list)
    seams: list[RowWarning] = field(default_factory=list)
    duplicates: int = 0
    injected: int = 0
    chats: int = 0

    def row(self, row: RawRow, example: Example, prepared: Sequence[Prepared]) -> None:
        """Notice a row of a good shape."""
        self.duplicates += example in self.seen
        self.seen.add(example)
        self.chats += prepared[0].chat
        self.injected += any(text.injected for text in prepared)
        if isinstance(example, Pair) and scores_are_reversed(row.value):
            self.reversed.append(row)

    def seam(self, row: Row) -> None:
        """Notice a row whose prompt does not end with a token, or not with the same one on both sides."""
        message = "one token holds the end of the prompt and the beginning of the completion; it is supervised"
        if len(row.texts) > 1:
            message = (
                "a token holds the end of the prompt and the beginning of a completion, or the two sides differ there; "
                "both are supervised from the same token on"
            )
        self.seams.append(RowWarning(code="seam", message=message, file=row.file, line=row.line))

    def warnings(self, rows: Sequence[Row], counts: dict[str, int]) -> Iterator[RowWarning]:
        """All warnings. ``rows`` and ``counts`` are the judgement's."""
        if self.ignored:
            names = list(dict.fromkeys(f"`{printable(name)}`" for name in self.ignored))
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            yield RowWarning(code="unknown_columns", message=f"columns not used: {', '.join(names[:SHOWN])}{more}")
        if self.chats and self.tokenizer.template is None:
            style = "ChatML" if self.tokenizer.uses_chatml_default else "`role: content` blocks"
            yield RowWarning(
                code="default_template",
                message=f"the model has no chat template: conversations are rendered as {style}",
            )
        if self.injected:
            yield RowWarning(
                code="injected_text",
                message=f"the chat template puts a system text of its own into {_count(self.injected)} that "
                f"had none; it is {'' if self.everything else 'not '}supervised",
            )
        if self.duplicates:
            yield RowWarning(code="duplicates", message=f"earlier rows are repeated by {_count(self.duplicates)}")
        if self.reversed:
            yield RowWarning(
                code="reversed_scores",
                message=f"score_chosen is below score_rejected in {_count(len(self.reversed))}, "
                f"{_where(self.reversed, rows)}: `chosen` is trained as the better one all the same",
            )
        if rows and (missing := [label for label, count in counts.items() if not count]):
            yield _one_label(missing[0])
        if short := [row for row in rows if row.cut]:
            yield self._cut(short, rows)
        yield from self.seams

    def _cut(self, short: Sequence[Row], rows: Sequence[Row]) -> RowWarning:
        lost, kept = sum(row.cut for row in short), sum(row.supervised for row in rows)
        return RowWarning(
            code="cut",
            message=f"max_length ({self.max_length}) cuts {_count(len(short))} of {len(rows)}, "
            f"{_where(short, rows)}: {lost / (lost + kept):.1%} of the supervised tokens are lost",
        )


def label_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Rows of each label of KTO."""
    desirable = sum(isinstance(row, KtoRow) and row.desirable for row in rows)
    return {"desirable": desirable, "undesirable": len(rows) - desirable}


def _one_label(missing: str) -> RowWarning:
    only, means = (
        ("desirable", "towards these completions and away from none")
        if missing == "undesirable"
        else ("undesirable", "away from these completions and towards none")
    )
    return RowWarning(code="one_label", message=f"every row is {only}: the model is pushed {means}")


def _where(some: Sequence[RawRow | Row], rows: Sequence[Row]) -> str:
    """The lines of ``some`` rows, with their files when the trace has several."""
    several = len({row.file for row in rows}) > 1
    places = [f"{row.file}:{row.line}" if several else str(row.line) for row in some[:SHOWN]]
    more = f" and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
    return f"{'lines' if len(some) > 1 else 'line'} {', '.join(places)}{more}"


def _count(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"
