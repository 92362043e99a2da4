"""What judging a trace yields."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct


class TraceSource(Protocol):
    """One trace file, read as often as it is opened."""

    @property
    def name(self) -> str:
        """As given (``-`` for stdin)."""

    def open(self) -> BinaryIO:
        """Its bytes from the first on; can be sought in."""

    def sha256(self) -> str:
        """The digest of its bytes as they are stored."""


class Source(Struct, frozen=True, kw_only=True):
    """One trace file: its name as given (``-`` for stdin) and its bytes."""

    name: str
    data: bytes

    def open(self) -> BinaryIO:
        """Its bytes, from memory."""
        return io.BytesIO(self.data)

    def sha256(self) -> str:
        """The digest of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


class FileSource(Struct, frozen=True, kw_only=True):
    """One trace file on disk: its name as given and where it is. It must be a regular file: no pipe, which ends."""

    name: str
    path: Path

    def open(self) -> BinaryIO:
        """Its bytes, from the disk. Raises OSError."""
        return self.path.open("rb")

    def sha256(self) -> str:
        """The digest of its bytes. Raises OSError."""
        return digest(self)


def digest(*sources: TraceSource) -> str:
    """The sha256 of the bytes of all sources, one after the other. Raises OSError."""
    state = hashlib.sha256()
    for source in sources:
        with source.open() as file:
            while block := file.read(1 << 20):
                state.update(block)
    return state.hexdigest()


class Tokens(Struct, frozen=True, kw_only=True):
    """One tokenized text.

    ``labels`` has the length of ``input_ids``: the id where the token is supervised, else -100; its first is always
    -100, since no position predicts it.
    """

    input_ids: list[int]
    labels: list[int]

    @property
    def supervised(self) -> int:
        """Number of supervised tokens."""
        return len(self.labels) - self.labels.count(-100)


class SftRow(Struct, frozen=True, kw_only=True):
    """One example of supervised fine-tuning, cut to ``max_length``.

    ``input_ids`` and ``labels`` as in :class:`Tokens`. ``cut`` counts supervised tokens lost to ``max_length``.
    """

    file: str
    line: int
    input_ids: list[int]
    labels: list[int]
    cut: int = 0

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """All that the model reads of it."""
        return (Tokens(input_ids=self.input_ids, labels=self.labels),)

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.input_ids) for text in self.texts)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens of all texts."""
        return sum(text.supervised for text in self.texts)


class DpoRow(Struct, frozen=True, kw_only=True):
    """One preference: two completions of one prompt, each with it and cut to ``max_length``.

    Both sides have the same tokens before their first supervised one. ``cut`` counts supervised tokens lost on both.
    """

    file: str
    line: int
    chosen: Tokens
    rejected: Tokens
    cut: int = 0

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """All that the model reads of it."""
        return (self.chosen, self.rejected)

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.input_ids) for text in self.texts)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens of all texts."""
        return sum(text.supervised for text in self.texts)


class KtoRow(Struct, frozen=True, kw_only=True):
    """One completion with its prompt, cut to ``max_length``, and whether it is desirable.

    All tokens from the first supervised one on are supervised: they are the completion, those before it the prompt.
    ``rest`` are the ``cut`` tokens of the completion: behind a shorter prompt (the KL term) there is room for more.
    """

    file: str
    line: int
    input_ids: list[int]
    labels: list[int]
    desirable: bool
    cut: int = 0
    rest: list[int] = []

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """All that the model reads of it, but for the completions of other rows (the KL term)."""
        return (Tokens(input_ids=self.input_ids, labels=self.labels),)

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.input_ids) for text in self.texts)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens of all texts."""
        return sum(text.supervised for text in self.texts)


Row = SftRow | DpoRow | KtoRow


class BadRow(Struct, frozen=True, kw_only=True):
    """A row that cannot be trained. ``line`` is None for the file as a whole. ``reason`` has no text of the row.

    ``rest_unread``: nothing that follows in the file was read, so that it cannot be left out as one row.
    """

    file: str
    line: int | None
    reason: str
    field: str | None = None
    rest_unread: bool = False


class RowWarning(Struct, frozen=True, kw_only=True):
    """Something a person should know; ``line`` is None when it concerns many rows."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None


class FileRead(Struct, frozen=True, kw_only=True):
    """One file of a trace: what it is, and its rows, bad ones too."""

    name: str
    format: str
    rows: int


class Lengths(Struct, frozen=True, kw_only=True):
    """How many rows have at most so many tokens (of their longest text, uncut), and more than the bin before."""

    at_most: int
    rows: int


class Judgement(Struct, frozen=True, kw_only=True):
    """Every row, judged.

    Attributes:
        rows: those that train, in file order; empty unless asked for.
        kept: how many train.
        total: how many there are, bad ones too.
        bad: all that cannot be trained, in file order.
        skipped: rows with something bad that were left out as asked; 0 when bad rows refuse the trace.
        dropped: rows left out since they are longer than ``max_length``, as asked.
        warnings: what a person should know; one without a line concerns many rows.
        single: the single rows behind warnings that sum many up. Both are bounded for each code.
        sha256: over the concatenated bytes of the sources; ``rows_sha256`` over the places of the rows that train.
        tokens, supervised_tokens: of rows that train, after the cut.
        truncated: rows that lost supervised tokens to the cut; ``lost_tokens`` are these.
        duplicates: rows that repeat an earlier one; ``same_prompt`` those that answer an earlier prompt otherwise.
        counts: rows of each label (``desirable``, ``undesirable``) for KTO.
        kinds: rows of each shape.
        files: what was read.
        lengths: a histogram.
        longest: tokens of the longest text that trains; ``widest`` of the row with the most in all.
    """

    rows: list[Row]
    kept: int
    total: int
    bad: list[BadRow]
    skipped: int
    dropped: int
    warnings: list[RowWarning]
    single: list[RowWarning]
    sha256: str
    rows_sha256: str
    tokens: int
    supervised_tokens: int
    truncated: int
    lost_tokens: int
    duplicates: int
    same_prompt: int
    counts: dict[str, int]
    kinds: dict[str, int]
    files: list[FileRead]
    lengths: list[Lengths]
    longest: int
    widest: int

    @property
    def refusals(self) -> list[BadRow]:
        """What refuses the trace: bad rows not left out, a file that could not be read whole, no row at all."""
        if not self.skipped:
            return self.bad
        unread = [bad for bad in self.bad if bad.line is None or bad.rest_unread]
        return unread or ([] if self.kept else self.bad)
