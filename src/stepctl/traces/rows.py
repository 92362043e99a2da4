"""What judging a trace yields."""

from __future__ import annotations

from msgspec import Struct


class Source(Struct, frozen=True, kw_only=True):
    """One trace file: its name as given (``-`` for stdin) and its bytes."""

    name: str
    data: bytes


class SftRow(Struct, frozen=True, kw_only=True):
    """One example, tokenized and cut to ``max_length``.

    ``labels`` has the length of ``input_ids``: the id where the token is supervised, else -100; its first is always
    -100, since no position predicts it. ``cut`` counts supervised tokens lost to ``max_length``.
    """

    file: str
    line: int
    input_ids: list[int]
    labels: list[int]
    cut: int = 0

    @property
    def supervised(self) -> int:
        """Number of supervised tokens."""
        return sum(label != -100 for label in self.labels)


class BadRow(Struct, frozen=True, kw_only=True):
    """A row that cannot be trained. ``line`` is None for the file as a whole. ``reason`` has no text of the row."""

    file: str
    line: int | None
    reason: str
    field: str | None = None


class RowWarning(Struct, frozen=True, kw_only=True):
    """Something a person should know; ``line`` is None when it concerns all rows."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None


class Judgement(Struct, frozen=True, kw_only=True):
    """Every row, judged. ``sha256`` is over the concatenated bytes of the sources; ``tokens`` counts after the cut."""

    rows: list[SftRow]
    bad: list[BadRow]
    warnings: list[RowWarning]
    sha256: str
    tokens: int
    supervised_tokens: int
