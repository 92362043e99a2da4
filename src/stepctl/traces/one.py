"""One row of a trace, as the model will see it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepctl.traces.judge import Judging
from stepctl.traces.read import RawRow, read_rows
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import BadRow, DpoRow, KtoRow, Row, RowWarning, Tokens, TraceSource
from stepctl.traces.rules import Rules
from stepctl.traces.shapes.examples import Text
from stepctl.traces.shown import spans


class Span(Struct, frozen=True, kw_only=True):
    """A run of tokens as text."""

    text: str
    supervised: bool


class ShownText(Struct, frozen=True, kw_only=True):
    """A text as tokens; ``spans`` joined are ``text``, which has the control tokens too. Labels as in ``Tokens``."""

    text: str
    spans: list[Span]
    token_ids: list[int]
    labels: list[int]

    @property
    def supervised(self) -> int:
        """Number of supervised tokens."""
        return sum(label != -100 for label in self.labels)


class Shown(Struct, frozen=True, kw_only=True):
    """A row. ``row`` counts the file's rows; ``texts`` has one, or that of ``chosen`` and that of ``rejected``.

    ``desirable`` is the label of KTO. ``cut`` supervised tokens are lost to ``max_length``.
    """

    file: str
    format: str
    row: int
    line: int
    kind: str
    template: str | None
    texts: dict[str, ShownText]
    cut: int
    desirable: bool | None
    warnings: list[RowWarning]


def show_row(source: TraceSource, line: int, rules: Rules, tokenizer: TextTokenizer) -> Shown | list[BadRow] | str:
    """Look for the row at ``line`` and make its tokens.

    Returns:
        The row; or what is wrong with it; or why there is none.
    """
    reading, near = read_rows(source), None
    for number, raw in enumerate(reading, start=1):
        if raw.line is None:
            return [raw] if isinstance(raw, BadRow) else "the row has no line"
        if raw.line == line:
            return [raw] if isinstance(raw, BadRow) else _show(raw, number, reading.format, rules, tokenizer)
        if isinstance(raw, BadRow) and raw.rest_unread:
            return [raw]
        if raw.line > line:
            return f"{source.name} has no row at line {line}; the next one is at line {raw.line}"
        near = raw.line
    if near is None:
        return f"{source.name} has no rows"
    return f"{source.name} has no row at line {line}; the last one is at line {near}"


def _show(raw: RawRow, number: int, form: str, rules: Rules, tokenizer: TextTokenizer) -> Shown | list[BadRow] | str:
    rows: list[Row] = []
    judging = Judging(rules, tokenizer, rows.append, most=10)
    found = judging.prepare(raw)
    if isinstance(found, list):
        return found
    if bad := list(judging.tokenize([found])):
        return bad
    notices, tally = judging.notices, judging.tally
    warnings = [*notices.warnings(tally, rules.method, False), *notices.single(tally)]
    warnings = [each for each in warnings if each.line is not None]
    if not rows:
        why = next(each.message for each in warnings if each.code == "dropped_long")
        return f"the row at line {raw.line} is {why}"
    (row,) = rows
    example, (first, *_) = found.example, found.prepared
    return Shown(
        file=raw.file,
        format=form,
        row=number,
        line=raw.line,
        kind=next(iter(tally.kinds), ""),
        template=tokenizer.origin if first.chat else None,
        texts=dict(_texts(row, tokenizer, rules.everything or isinstance(example, Text))),
        cut=row.cut,
        desirable=row.desirable if isinstance(row, KtoRow) else None,
        warnings=warnings,
    )


def _texts(row: Row, tokenizer: TextTokenizer, whole: bool) -> Iterator[tuple[str, ShownText]]:
    names = ("chosen", "rejected") if isinstance(row, DpoRow) else ("",)
    for name, tokens in zip(names, row.texts, strict=True):
        yield name, _text(tokens, tokenizer, whole)


def _text(tokens: Tokens, tokenizer: TextTokenizer, whole: bool) -> ShownText:
    """The first token of a text that is supervised as a whole has its label here, though no position predicts it."""
    ids, labels = tokens.input_ids, tokens.labels
    if whole and ids[0] != tokenizer.bos_id:
        labels = [ids[0], *labels[1:]]
    found = [Span(text=text, supervised=supervised) for text, supervised in spans(tokenizer, ids, labels)]
    return ShownText(text="".join(span.text for span in found), spans=found, token_ids=ids, labels=labels)
