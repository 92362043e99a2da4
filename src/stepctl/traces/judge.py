"""Every row of a trace, judged before anything is spent: what would be trained, what is bad, what to know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepctl.base.errors import UsageError
from stepctl.traces.chat import ChatPlacer, ConversationRefused
from stepctl.traces.mask import Prepared, RowRefused, cut, mask, prepare
from stepctl.traces.read import EMPTY, RawRow, parse, printable
from stepctl.traces.rows import BadRow, Judgement, Row, RowWarning, Source
from stepctl.traces.sft import Conversation, Example, shape
from stepctl.traces.tokenizer import Encoded, TextTokenizer

BATCH = 256
"""Rows tokenized at once: bounds the memory of offsets, which are several times the ids'."""


def judge(
    sources: Sequence[Source], *, method: str, tokenizer: TextTokenizer, max_length: int, train_on: str
) -> Judgement:
    """Judge every row of ``sources``, in order.

    Args:
        sources: the files of the trace.
        method: ``sft``.
        tokenizer: of the model that is trained.
        max_length: tokens of a row that are kept.
        train_on: ``assistant`` supervises replies, completions and texts; ``all`` every token but the first.

    Returns:
        The rows in file order, all bad rows, and warnings. It may have no row at all.

    Raises:
        UsageError: the method or ``train_on`` is unknown, or the model's chat template is no valid Jinja.
    """
    if method != "sft":
        raise UsageError(f"method {method!r} is unknown", next='use method "sft"')
    if train_on not in ("assistant", "all"):
        raise UsageError(f"train_on {train_on!r} is unknown", next='use "assistant" or "all"')
    judging = _Judging(tokenizer, max_length, everything=train_on == "all")
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.data)
        judging.read(source)
    if not sources:
        judging.bad.append(BadRow(file="", line=None, reason=EMPTY))
    return judging.finish(digest.hexdigest())


@dataclass
class _Judging:
    """The state of one judgement. Rows wait in ``waiting`` to be tokenized together."""

    tokenizer: TextTokenizer
    max_length: int
    everything: bool
    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    seams: list[RowWarning] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.placer = ChatPlacer(self.tokenizer)
        self.ignored: dict[str, None] = {}
        self.seen: set[Example] = set()
        self.duplicates = self.injected = self.chats = 0

    def read(self, source: Source) -> None:
        """Judge the rows of one file."""
        raw, unread = parse(source)
        bad: list[BadRow] = list(unread)
        waiting: list[tuple[RawRow, Prepared]] = []
        for row in raw:
            shaped = shape(row.value, need_assistant=not self.everything)
            if shaped.example is None:
                bad += shaped.bad(row)
                continue
            self.ignored |= dict.fromkeys(shaped.ignored)
            try:
                prepared = prepare(shaped.example, self.placer, everything=self.everything)
            except ConversationRefused as error:
                bad.append(BadRow(file=row.file, line=row.line, field=error.field, reason=error.reason))
                continue
            self._count(shaped.example, prepared)
            waiting.append((row, prepared))
        for start in range(0, len(waiting), BATCH):
            bad += self._tokenize(waiting[start : start + BATCH])
        self.bad += sorted(bad, key=lambda row: row.line or 0)

    def _count(self, example: Example, prepared: Prepared) -> None:
        self.duplicates += example in self.seen
        self.seen.add(example)
        self.chats += isinstance(example, Conversation)
        self.injected += prepared.injected

    def _tokenize(self, batch: Sequence[tuple[RawRow, Prepared]]) -> Iterator[BadRow]:
        encoded: dict[int, Encoded] = {}
        for chat in (True, False):
            places = [i for i, (_, prepared) in enumerate(batch) if prepared.chat is chat]
            texts = [batch[i][1].text for i in places]
            encoded |= zip(places, self.tokenizer.encode_batch(texts, add_special_tokens=not chat), strict=True)
        for i, (row, prepared) in enumerate(batch):
            try:
                masked = mask(prepared, encoded[i], self.tokenizer)
                self.rows.append(cut(row.file, row.line, masked, self.max_length))
            except RowRefused as error:
                yield BadRow(file=row.file, line=row.line, field=error.field, reason=error.reason)
                continue
            if masked.crosses_seam:
                message = "one token holds the end of the prompt and the beginning of the completion; it is supervised"
                self.seams.append(RowWarning(code="seam", message=message, file=row.file, line=row.line))

    def finish(self, sha256: str) -> Judgement:
        """The judgement of all that was read."""
        return Judgement(
            rows=self.rows,
            bad=self.bad,
            warnings=[*self._warnings(), *self.seams],
            sha256=sha256,
            tokens=sum(row.tokens for row in self.rows),
            supervised_tokens=sum(row.supervised for row in self.rows),
        )

    def _warnings(self) -> Iterator[RowWarning]:
        if self.ignored:
            names = list(dict.fromkeys(f"`{printable(name)}`" for name in self.ignored))
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            yield RowWarning(code="unknown_columns", message=f"columns not used: {', '.join(names[:10])}{more}")
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
        if short := [row for row in self.rows if row.cut]:
            yield self._cut_warning(short)

    def _cut_warning(self, short: Sequence[Row]) -> RowWarning:
        lost, kept = sum(row.cut for row in short), sum(row.supervised for row in self.rows)
        several = len({row.file for row in self.rows}) > 1
        places = [f"{row.file}:{row.line}" if several else str(row.line) for row in short[:10]]
        more = f" and {len(short) - 10} more" if len(short) > 10 else ""
        where = f"{'lines' if len(short) > 1 else 'line'} {', '.join(places)}{more}"
        return RowWarning(
            code="cut",
            message=f"max_length ({self.max_length}) cuts {_count(len(short))} of {len(self.rows)}, {where}: "
            f"{lost / (lost + kept):.1%} of the supervised tokens are lost",
        )


def _count(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"
