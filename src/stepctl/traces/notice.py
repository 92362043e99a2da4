"""What a person should know of a trace that is not bad: noticed row by row, summed up at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from stepctl.traces.methods.preference import scores_are_reversed
from stepctl.traces.read import RawRow, printable
from stepctl.traces.render.mask import Prepared
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import BadRow, Row, RowWarning
from stepctl.traces.shapes.examples import Example, Note, Pair
from stepctl.traces.tally import AGAINST, SAME, Tally

_NAMES, _NAME = 1000, 200
"""Names of unused columns that are known, and characters of each: rows may have any."""

SHOWN = 10
"""Lines and columns that a summary names."""


@dataclass
class _Told:
    """What was noticed of single rows under one code."""

    rows: int = 0
    places: list[tuple[str, int]] = field(default_factory=list)
    warnings: list[RowWarning] = field(default_factory=list)


@dataclass
class Notices:
    """What was noticed so far.

    Attributes:
        everything: every token is supervised.
        most: warnings of single rows that are kept of each code.
    """

    tokenizer: TextTokenizer
    max_length: int
    everything: bool
    most: int
    ignored: dict[str, None] = field(default_factory=dict)
    injected: int = 0
    dated: int = 0
    chats: int = 0
    _told: dict[str, _Told] = field(default_factory=dict)

    def row(self, raw: RawRow, example: Example, prepared: Sequence[Prepared], stands: str | None) -> None:
        """Notice a row of a good shape; ``stands`` says how it stands to earlier ones, see :meth:`Tally.example`."""
        self.chats += prepared[0].chat
        self.injected += any(text.injected for text in prepared)
        self.dated += any(text.dated for text in prepared)
        if spelled := sum(text.spelled for text in prepared):
            self._tell("spelled", raw, f"spells {spelled} control tokens; they are read as text")
        if stands == SAME:
            self._tell("duplicates", raw, "repeats an earlier row")
        if stands == AGAINST:
            what = "prefers what an earlier row rejects" if isinstance(example, Pair) else "has an earlier row's answer"
            self._tell("contradiction", raw, f"{what} to the same prompt, with the opposite label")
        if isinstance(example, Pair) and scores_are_reversed(raw.value):
            self._tell("reversed_scores", raw, "score_chosen is below score_rejected: `chosen` is the better one still")

    def unused(self, names: Sequence[str]) -> None:
        """Notice columns and keys that are not used."""
        for name in names:
            if len(self.ignored) < _NAMES:
                self.ignored[name[:_NAME]] = None

    def notes(self, raw: RawRow, notes: Sequence[Note]) -> None:
        """Notice what a row's shape noted."""
        for note in notes:
            self._tell(note.code, raw, f"{note.field}: {note.reason}" if note.field else note.reason)

    def seam(self, row: Row) -> None:
        """Notice a row whose prompt does not end with a token, or not with the same one on both sides."""
        message = "one token holds the end of the prompt and the beginning of the completion; it is supervised"
        if len(row.texts) > 1:
            message = (
                "a token holds the end of the prompt and the beginning of a completion, or the two sides differ there; "
                "both are supervised from the same token on"
            )
        self._tell("seam", row, message)

    def cut(self, row: Row, length: int) -> None:
        """Notice a row of ``length`` tokens that was cut."""
        lost = f"{row.cut} of {row.cut + row.supervised} supervised tokens are lost"
        self._tell("cut", row, f"its {length} tokens are cut to max_length ({self.max_length}): {lost}")

    def dropped(self, raw: RawRow, length: int) -> None:
        """Notice a row of ``length`` tokens that was left out."""
        why = f"its {length} tokens are more than max_length ({self.max_length})"
        self._tell("dropped_long", raw, f'left out: {why}, and on_long is "drop"')

    def _tell(self, code: str, row: RawRow | Row, message: str) -> None:
        told = self._told.setdefault(code, _Told())
        told.rows += 1
        if len(told.places) < SHOWN:
            told.places.append((row.file, row.line))
        if len(told.warnings) < self.most:
            told.warnings.append(RowWarning(code=code, message=message, file=row.file, line=row.line))

    def warnings(self, tally: Tally, method: str, several: bool) -> Iterator[RowWarning]:
        """What concerns many rows, then single ones that are not summed up. ``several``: there are several files."""
        yield from self._of_all(tally, method)
        summaries = self._summaries(tally)
        for code, say in summaries.items():
            if told := self._told.get(code):
                yield RowWarning(code=code, message=say(_count(told.rows), _where(told, several)))
        for code, told in self._told.items():
            if code not in summaries:
                yield from told.warnings
                if more := told.rows - len(told.warnings):
                    yield RowWarning(code=code, message=f"and {more} more rows like these: {told.warnings[0].message}")

    def single(self, tally: Tally) -> Iterator[RowWarning]:
        """The single rows behind the summaries."""
        summaries = self._summaries(tally)
        for code, told in self._told.items():
            if code in summaries:
                yield from told.warnings

    def _of_all(self, tally: Tally, method: str) -> Iterator[RowWarning]:
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
        if self.dated:
            yield RowWarning(
                code="injected_date",
                message=f"the chat template writes today's date into {_count(self.dated)}: on another day the same "
                "rows become other tokens",
            )
        counts = tally.counts(method)
        if tally.kept and (missing := [label for label, count in counts.items() if not count]):
            yield _one_label(missing[0])

    def _summaries(self, tally: Tally) -> dict[str, Callable[[str, str], str]]:
        """How rows of a code are summed up, from their number and places; other codes are told row by row."""
        lost = f"{tally.lost / max(tally.lost + tally.supervised, 1):.1%} of the supervised tokens are lost"
        return {
            "duplicates": lambda rows, _: f"earlier rows are repeated by {rows}",
            "contradiction": lambda rows, where: (
                f"{rows}, {where}, say the opposite of an earlier row: the model is pushed both ways"
            ),
            "reversed_scores": lambda rows, where: (
                f"score_chosen is below score_rejected in {rows}, {where}: `chosen` is trained as the better one all "
                "the same"
            ),
            "cut": lambda rows, where: f"max_length ({self.max_length}) cuts {rows} of {tally.kept}, {where}: {lost}",
            "spelled": lambda rows, where: f"{rows}, {where}, spell control tokens, which are read as text",
            "dropped_long": lambda rows, where: (
                f"{rows}, {where}, are left out: they are longer than max_length ({self.max_length})"
            ),
        }


def left_out(bad: Sequence[BadRow], rows: int) -> RowWarning:
    """That bad rows were left out as asked, and why the first ones were."""
    first = {(each.file, each.line): each for each in reversed(bad)}
    told = [
        f"{row.file}, line {row.line}: {f'{row.field}: ' if row.field else ''}{row.reason}"
        for row in list(reversed(first.values()))[:SHOWN]
    ]
    more = f"; and {rows - SHOWN} more" if rows > SHOWN else ""
    return RowWarning(code="skipped_rows", message=f"{_count(rows)} left out as bad: {'; '.join(told)}{more}")


def _one_label(missing: str) -> RowWarning:
    only, means = (
        ("desirable", "towards these completions and away from none")
        if missing == "undesirable"
        else ("undesirable", "away from these completions and towards none")
    )
    return RowWarning(code="one_label", message=f"every row is {only}: the model is pushed {means}")


def _where(told: _Told, several: bool) -> str:
    """The lines of some rows, with their files when the trace has several."""
    places = [f"{file}:{line}" if several else str(line) for file, line in told.places]
    more = f" and {told.rows - SHOWN} more" if told.rows > SHOWN else ""
    return f"{'lines' if told.rows > 1 else 'line'} {', '.join(places)}{more}"


def _count(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"
