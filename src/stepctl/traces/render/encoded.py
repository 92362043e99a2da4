"""Tokens of a text, and which of them hold a stretch of it."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol


class Encoding(Protocol):
    """The part of tokenizers' own ``Encoding`` that is used."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


def squashed(text: str) -> str:
    """``text`` without white space and in one normal form: templates trim, tokenizers normalize."""
    return "".join((text if text.isascii() else unicodedata.normalize("NFKC", text)).split())


class Encoded:
    """Tokens of a text.

    Attributes:
        ids: the tokens.
        added: 1 where the post-processor put a token; empty when it put none.
        exact: each token is known to be bytes of the text, and all of them together are the text.
    """

    __slots__ = ("_ends", "_offsets", "_raw", "_text", "added", "exact", "ids")

    def __init__(
        self,
        text: str,
        ids: list[int],
        added: Sequence[int],
        *,
        raw: Encoding | None = None,
        offsets: list[tuple[int, int]] | None = None,
        ends: list[int] | None = None,
    ) -> None:
        """``ends``: where each token ends in the text's UTF-8 bytes, if known; else ``raw`` or ``offsets``."""
        self._text, self.ids, self.added = text, ids, added
        self._raw, self._offsets, self._ends = raw, offsets, ends
        self.exact = ends is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Encoded):
            return NotImplemented
        return (self.ids, list(self.added), self.offsets) == (other.ids, list(other.added), other.offsets)

    __hash__ = None  # type: ignore[assignment]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """[start, end) of each token in characters of the text; (0, 0) where the post-processor put one."""
        if self._offsets is None:
            assert self._raw is not None
            self._offsets = self._raw.offsets
        return self._offsets

    def _byte(self, character: int) -> int:
        return character if self._text.isascii() else len(self._text[:character].encode())

    def inside(self, start: int, end: int) -> tuple[int, int]:
        """[first, last) of the tokens that overlap the characters [start, end); none when the two are equal."""
        if self._ends is not None:
            first, last = bisect_right(self._ends, self._byte(start)), self._byte(end)
            return first, min(bisect_left(self._ends, last) + 1, len(self._ends)) if start < end else first
        found = [i for i, (begins, ends) in enumerate(self.offsets) if begins < end and ends > start]
        return (found[0], found[-1] + 1) if found else (0, 0)

    def splits(self, character: int) -> bool:
        """Whether one token holds characters before and after this place."""
        if self._ends is not None:
            at = self._byte(character)
            found = bisect_left(self._ends, at)
            return at > 0 and found < len(self._ends) and self._ends[found] != at
        return any(start < character < end for start, end in self.offsets)
