"""Every row of a trace, judged before anything is spent: what would be trained, what is bad, what to know.

Rows stream through: files are read piece by piece and rows are tokenized in batches, so that memory does not grow with
the trace unless the caller keeps what trains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepctl.base.errors import UsageError
from stepctl.traces.methods import feedback, preference, sft
from stepctl.traces.notice import Notices, left_out
from stepctl.traces.read import EMPTY, RawRow, read_rows
from stepctl.traces.render.assemble import assemble, end_of, prepare_all
from stepctl.traces.render.chat import ChatPlacer, ConversationRefused
from stepctl.traces.render.mask import Masked, Prepared, RowRefused, encode, mask
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import BadRow, FileRead, Judgement, Row, TraceSource, digest
from stepctl.traces.rules import Rules
from stepctl.traces.shapes.examples import Example, Note, Shaped
from stepctl.traces.tally import Tally

BATCH, BATCH_CHARACTERS = 256, 1 << 22
"""Rows and characters tokenized at once: bound the memory of offsets, which are several times the ids'."""

METHODS = ("sft", "dpo", "kto")


class Waiting(NamedTuple):
    """A row of a good shape that has no tokens yet."""

    raw: RawRow
    example: Example
    notes: Sequence[Note]
    prepared: tuple[Prepared, ...]


Keep = Callable[[Row], object]
"""Takes each row that trains, in file order."""


def judge(sources: Sequence[TraceSource], rules: Rules, tokenizer: TextTokenizer, *, most: int = 10) -> Judgement:
    """Judge every row of ``sources``, in order, and keep those that train.

    Args:
        sources: the files of the trace.
        rules: what rows are, and what becomes of them.
        tokenizer: of the model that is trained.
        most: warnings of single rows that are kept of each kind.

    Raises:
        UsageError: the method or ``train_on`` is unknown or does not go with the other, or the model's chat template
            is no valid Jinja.
    """
    rows: list[Row] = []
    return _judge(sources, rules, tokenizer, most, rows.append, rows)


def survey(sources: Sequence[TraceSource], rules: Rules, tokenizer: TextTokenizer, *, most: int = 10) -> Judgement:
    """As :func:`judge`, without keeping any row: memory does not grow with the trace."""
    return _judge(sources, rules, tokenizer, most, lambda _: None, [])


def _judge(
    sources: Sequence[TraceSource], rules: Rules, tokenizer: TextTokenizer, most: int, keep: Keep, rows: list[Row]
) -> Judgement:
    check_rules(rules)
    judging = Judging(rules, tokenizer, keep, most)
    for source in sources:
        judging.read(source)
    if not sources:
        judging.bad.append(BadRow(file="", line=None, reason=EMPTY))
    return judging.finish(rows, digest(*sources))


def check_rules(rules: Rules) -> None:
    """Raises:
    UsageError: they contradict each other.
    """
    if rules.method not in METHODS:
        raise UsageError(f"method {rules.method!r} is unknown", next='use method "sft", "dpo" or "kto"')
    if rules.train_on not in ("assistant", "all"):
        raise UsageError(f"train_on {rules.train_on!r} is unknown", next='use "assistant" or "all"')
    if rules.everything and rules.method != "sft":
        raise UsageError(
            f'train_on "all" is for sft only: {rules.method} compares completions, not their prompts',
            next='set train.train_on = "assistant", or use --method sft',
        )


@dataclass
class Judging:
    """The state of one judgement. Rows wait to be tokenized together."""

    rules: Rules
    tokenizer: TextTokenizer
    keep: Keep
    most: int
    bad: list[BadRow] = field(default_factory=list)
    files: list[FileRead] = field(default_factory=list)
    total: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        self.placer = ChatPlacer(self.tokenizer, parse_special=self.rules.parse_special_tokens)
        self.tally, self._kept = Tally(), hashlib.sha256()
        self.notices = Notices(self.tokenizer, self.rules.max_length, self.rules.everything, self.most)

    def shape(self, row: dict[str, Any]) -> Shaped:
        """Take a row by the method's shapes."""
        rules = self.rules
        if rules.method == "sft":
            return sft.shape(row, need_assistant=not rules.everything, thinking=rules.thinking)
        if rules.method == "dpo":
            return preference.shape(row, thinking=rules.thinking)
        return feedback.shape(row, thinking=rules.thinking)

    def read(self, source: TraceSource) -> None:
        """Judge the rows of one file."""
        bad: list[BadRow] = []
        waiting: list[Waiting] = []
        reading, rows, characters = read_rows(source), 0, 0
        for row in reading:
            rows += isinstance(row, RawRow) or row.line is not None
            if isinstance(row, BadRow):
                bad.append(row)
                continue
            found = self.prepare(row)
            if isinstance(found, list):
                bad += found
                continue
            waiting.append(found)
            characters += sum(len(text.text) for text in found.prepared)
            if len(waiting) == BATCH or characters >= BATCH_CHARACTERS:
                bad += self.tokenize(waiting)
                waiting, characters = [], 0
        bad += self.tokenize(waiting)
        self.total += rows
        self.files.append(FileRead(name=source.name, format=reading.format, rows=rows))
        self.bad += sorted(bad, key=lambda row: row.line or 0)

    def prepare(self, row: RawRow) -> Waiting | list[BadRow]:
        """The texts of a row, or what is wrong with it."""
        shaped = self.shape(row.value)
        if shaped.kind:
            self.tally.kinds[shaped.kind] += 1
        if shaped.example is None:
            return shaped.bad(row)
        self.notices.unused(shaped.ignored)
        try:
            prepared = prepare_all(shaped.example, self.placer, everything=self.rules.everything)
        except (ConversationRefused, RowRefused) as error:
            return [BadRow(file=row.file, line=row.line, field=error.field, reason=error.reason)]
        return Waiting(row, shaped.example, shaped.notes, prepared)

    def tokenize(self, batch: Sequence[Waiting]) -> Iterator[BadRow]:
        """Make the rows of a batch and hand over those that train; yields what is wrong with the others."""
        texts = [text for row in batch for text in row.prepared]
        encoded = encode(texts, self.tokenizer)
        at = 0
        for row in batch:
            own = zip(row.prepared, encoded[at : at + len(row.prepared)], strict=True)
            at += len(row.prepared)
            try:
                self._take(row, [mask(text, tokens, self.tokenizer) for text, tokens in own])
            except RowRefused as error:
                yield BadRow(file=row.raw.file, line=row.raw.line, field=error.field, reason=error.reason)

    def _take(self, waiting: Waiting, masked: Sequence[Masked]) -> None:
        """Count a row, and hand it over when it trains.

        Raises:
            RowRefused: it cannot be trained, or is too long as the rules have it.
        """
        (raw, example, notes, prepared), rules = waiting, self.rules
        length = self.tally.length(masked)
        needed = max(end_of(text.labels) for text in masked)
        if needed > rules.max_length and rules.on_long == "refuse":
            reason = f'it has {needed} tokens, more than max_length ({rules.max_length}), and on_long is "refuse"'
            raise RowRefused(None, reason)
        if needed > rules.max_length and rules.on_long == "drop":
            self.dropped += 1
            self.notices.dropped(raw, needed)
            return
        row, crosses_seam = assemble(raw, example, masked, rules.max_length)
        self.tally.row(row)
        self._kept.update(f"{len(self.files)}:{raw.line}\n".encode())
        self.keep(row)
        self.notices.notes(raw, notes)
        self.notices.row(raw, example, prepared, self.tally.example(example))
        if crosses_seam:
            self.notices.seam(row)
        if row.cut:
            self.notices.cut(row, length)

    def finish(self, rows: list[Row], sha256: str) -> Judgement:
        """The judgement of all that was read."""
        tally, bad_rows = self.tally, {(bad.file, bad.line) for bad in self.bad if bad.line is not None}
        if not (tally.kept or self.bad):
            reason = "no row is left: all are longer than max_length" if self.dropped else EMPTY
            self.bad.append(BadRow(file=self.files[-1].name if self.files else "", line=None, reason=reason))
        skipped = len(bad_rows) if self.rules.skip_bad_rows else 0
        warnings = list(self.notices.warnings(tally, self.rules.method, len(self.files) > 1))
        if skipped:
            warnings.insert(0, left_out([bad for bad in self.bad if bad.line is not None], skipped))
        return Judgement(
            rows=rows,
            kept=tally.kept,
            total=self.total,
            bad=self.bad,
            skipped=skipped,
            dropped=self.dropped,
            warnings=warnings,
            single=list(self.notices.single(tally)),
            sha256=sha256,
            rows_sha256=self._kept.hexdigest(),
            tokens=tally.tokens,
            supervised_tokens=tally.supervised,
            truncated=tally.truncated,
            lost_tokens=tally.lost,
            duplicates=tally.repeats["same"],
            same_prompt=tally.repeats["prompt"],
            counts=tally.counts(self.rules.method),
            kinds=dict(tally.kinds),
            files=self.files,
            lengths=list(tally.lengths()),
            longest=tally.longest,
            widest=tally.widest,
        )
