"""Tokens back to text, in runs of what is supervised and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepctl.traces.mask import IGNORED
from stepctl.traces.tokenizer import TextTokenizer


class Span(Struct, frozen=True, kw_only=True):
    """A run of tokens as text."""

    text: str
    supervised: bool


def spans_of(ids: Sequence[int], labels: Sequence[int], tokenizer: TextTokenizer) -> list[Span]:
    return list(_spans(ids, labels, tokenizer))


def _spans(ids: Sequence[int], labels: Sequence[int], tokenizer: TextTokenizer) -> Iterator[Span]:
    start = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or (labels[i] == IGNORED) != (labels[start] == IGNORED):
            yield Span(text=tokenizer.decode(ids[start:i]), supervised=labels[start] != IGNORED)
            start = i
