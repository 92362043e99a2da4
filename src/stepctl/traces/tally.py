"""Counts of a trace, kept while its rows pass by: no row is held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepctl.traces.render.mask import Masked
from stepctl.traces.rows import KtoRow, Lengths, Row
from stepctl.traces.shapes.examples import Example, Feedback, Pair, prompt_of

SAME, PROMPT, AGAINST = "same", "prompt", "against"


@dataclass
class Tally:
    """What rows add up to. Examples are known by their hashes alone."""

    kept: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated: int = 0
    lost: int = 0
    longest: int = 0
    widest: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    _bins: Counter[int] = field(default_factory=Counter)
    _seen: set[int] = field(default_factory=set)
    _prompts: set[int] = field(default_factory=set)

    def example(self, example: Example) -> str | None:
        """Count an example against those before it.

        Returns:
            How it stands to one of them: it is the ``SAME``, it is ``AGAINST`` it (the other label, the sides of a pair
            exchanged), it answers the same ``PROMPT`` otherwise; or None.
        """
        key, prompt = hash(example), prompt_of(example)
        place = None if prompt is None else hash(prompt)
        found = None
        if key in self._seen:
            found = SAME
        elif (opposite := _opposite(example)) is not None and hash(opposite) in self._seen:
            found = AGAINST
        elif place is not None and place in self._prompts:
            found = PROMPT
        self._seen.add(key)
        if place is not None:
            self._prompts.add(place)
        if found is not None:
            self.repeats[found] += 1
        return found

    def row(self, row: Row) -> None:
        """Count a row that trains."""
        lengths = [len(text.input_ids) for text in row.texts]
        self.kept += 1
        self.tokens += sum(lengths)
        self.supervised += row.supervised
        self.lost += row.cut
        self.truncated += row.cut > 0
        self.longest = max(self.longest, *lengths)
        self.widest = max(self.widest, sum(lengths))
        if isinstance(row, KtoRow):
            self.labels["desirable" if row.desirable else "undesirable"] += 1

    def length(self, masked: Sequence[Masked]) -> int:
        """Count the tokens of a row's longest text; how many they are."""
        found = max(len(text.ids) for text in masked)
        self._bins[max(found - 1, 0).bit_length()] += 1
        return found

    def lengths(self) -> Iterator[Lengths]:
        """The histogram: bins end at powers of two."""
        for power in range(min(self._bins, default=0), max(self._bins, default=-1) + 1):
            yield Lengths(at_most=1 << power, rows=self._bins[power])

    def counts(self, method: str) -> dict[str, int]:
        """Rows of each label of KTO."""
        return {label: self.labels[label] for label in ("desirable", "undesirable")} if method == "kto" else {}


def _opposite(example: Example) -> Example | None:
    if isinstance(example, Feedback):
        return Feedback(example.answered, not example.desirable)
    return Pair(example.rejected, example.chosen) if isinstance(example, Pair) else None
