"""Every row of a trace, judged before anything is spent: what would be trained, what is bad, what to know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepctl.base.errors import UsageError
from stepctl.traces import feedback, preference, sft
from stepctl.traces.assemble import assemble, prepare_all
from stepctl.traces.chat import ChatPlacer, ConversationRefused
from stepctl.traces.mask import Prepared, RowRefused, encode, mask
from stepctl.traces.notice import Notices, label_counts
from stepctl.traces.read import EMPTY, RawRow, parse
from stepctl.traces.rows import BadRow, Judgement, Row, Source
from stepctl.traces.shapes import Example, Shaped
from stepctl.traces.tokenizer import TextTokenizer

BATCH = 256
"""Rows tokenized at once: bounds the memory of offsets, which are several times the ids'."""

METHODS = ("sft", "dpo", "kto")
Waiting = tuple[RawRow, Example, tuple[Prepared, ...]]


def judge(
    sources: Sequence[Source], *, method: str, tokenizer: TextTokenizer, max_length: int, train_on: str
) -> Judgement:
    """Judge every row of ``sources``, in order.

    Args:
        sources: the files of the trace.
        method: ``sft``, ``dpo`` or ``kto``: what shapes rows may have, and which rows are made of them.
        tokenizer: of the model that is trained.
        max_length: tokens of a row (of each side of a pair) that are kept.
        train_on: ``assistant`` supervises replies, completions and texts; ``all``, for ``sft`` alone, every token but
            the first.

    Returns:
        The rows in file order, all bad rows, and warnings. It may have no row at all.

    Raises:
        UsageError: the method or ``train_on`` is unknown or does not go with the other, or the model's chat template
            is no valid Jinja.
    """
    everything = train_on == "all"
    if method not in METHODS:
        raise UsageError(f"method {method!r} is unknown", next='use method "sft", "dpo" or "kto"')
    if train_on not in ("assistant", "all"):
        raise UsageError(f"train_on {train_on!r} is unknown", next='use "assistant" or "all"')
    if everything and method != "sft":
        raise UsageError(
            f'train_on "all" is for sft only: {method} compares completions, not their prompts',
            next='set train.train_on = "assistant", or use --method sft',
        )
    judging = _Judging(method, tokenizer, max_length, everything)
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

    method: str
    tokenizer: TextTokenizer
    max_length: int
    everything: bool
    rows: list[Row] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.placer = ChatPlacer(self.tokenizer)
        self.notices = Notices(self.tokenizer, self.max_length, self.everything)

    def shape(self, row: dict[str, Any]) -> Shaped:
        """Take a row by the method's shapes."""
        if self.method == "sft":
            return sft.shape(row, need_assistant=not self.everything)
        return preference.shape(row) if self.method == "dpo" else feedback.shape(row)

    def read(self, source: Source) -> None:
        """Judge the rows of one file."""
        raw, unread = parse(source)
        bad: list[BadRow] = list(unread)
        waiting: list[Waiting] = []
        for row in raw:
            shaped = self.shape(row.value)
            if shaped.example is None:
                bad += shaped.bad(row)
                continue
            self.notices.ignored |= dict.fromkeys(shaped.ignored)
            try:
                prepared = prepare_all(shaped.example, self.placer, everything=self.everything)
            except (ConversationRefused, RowRefused) as error:
                bad.append(BadRow(file=row.file, line=row.line, field=error.field, reason=error.reason))
                continue
            self.notices.row(row, shaped.example, prepared)
            waiting.append((row, shaped.example, prepared))
        for start in range(0, len(waiting), BATCH):
            bad += self._tokenize(waiting[start : start + BATCH])
        self.bad += sorted(bad, key=lambda row: row.line or 0)

    def _tokenize(self, batch: Sequence[Waiting]) -> Iterator[BadRow]:
        texts = [text for _, _, prepared in batch for text in prepared]
        encoded = encode(texts, self.tokenizer)
        at = 0
        for row, example, prepared in batch:
            own = zip(prepared, encoded[at : at + len(prepared)], strict=True)
            at += len(prepared)
            try:
                masked = [mask(text, tokens, self.tokenizer) for text, tokens in own]
                made, crosses_seam = assemble(row, example, masked, self.max_length)
            except RowRefused as error:
                yield BadRow(file=row.file, line=row.line, field=error.field, reason=error.reason)
                continue
            self.rows.append(made)
            if crosses_seam:
                self.notices.seam(made)

    def finish(self, sha256: str) -> Judgement:
        """The judgement of all that was read."""
        counts = label_counts(self.rows) if self.method == "kto" else {}
        return Judgement(
            rows=self.rows,
            bad=self.bad,
            warnings=list(self.notices.warnings(self.rows, counts)),
            sha256=sha256,
            tokens=sum(row.tokens for row in self.rows),
            supervised_tokens=sum(row.supervised for row in self.rows),
            counts=counts,
        )
