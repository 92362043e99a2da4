"""Which cases there are, and which of them every run of the tests makes.

``STEPCTL_MATRIX=all`` makes all of them (``make matrix``); else one in eight points is met once, from one side, and
followed by one command, which all change from point to point.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.doubles.runpod.faults import When
from tests.matrix.follow import FOLLOWS
from tests.matrix.points import CREATE, Point

STRIDE = 8
"""Every run of the tests meets one in so many of the points and worlds; all of them take half an hour."""

ALL = os.environ.get("STEPCTL_MATRIX") == "all"

SIDES: dict[str, tuple[When, bool]] = {"lost": ("before", True), "late": ("before", False), "after": ("after", False)}
"""A call that never comes; one that comes when the client is dead; one whose answer comes then."""


@dataclass(frozen=True)
class Case:
    """One death, and what follows."""

    point: Point
    side: str
    then: str

    @property
    def id(self) -> str:
        return f"{self.point.name}-{self.side}-{self.then}"

    @property
    def when(self) -> When:
        return SIDES[self.side][0]

    @property
    def lost(self) -> bool:
        return SIDES[self.side][1]

    @property
    def unresolved(self) -> bool:
        """Whether nobody will ever know that nothing was made."""
        return self.point.match == CREATE and self.side == "lost"


def whole(points: Sequence[Point]) -> Iterator[Case]:
    """Each point with everything that can follow, from both sides in turns; before it is in turns lost and late."""
    for at, point in enumerate(points):
        for number, then in enumerate(FOLLOWS):
            before = ("lost", "late")[(at + number) // 2 % 2]
            yield Case(point, before if (at + number) % 2 else "after", then)


def chosen(points: Sequence[Point]) -> list[Case]:
    """All cases, or one for each eighth point."""
    cases = list(whole(points))
    if ALL:
        return cases
    each = len(FOLLOWS)
    return [cases[each * at + at * 3 % each] for at in range(0, len(points), STRIDE)]
