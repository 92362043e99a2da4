"""The client is killed at every call of the API and every SSH command of a whole run."""

from __future__ import annotations

import re

import pytest
from tests.matrix.cases import Case, chosen
from tests.matrix.follow import AGAIN, FOLLOWS, ROWS, codes_of, rows_of
from tests.matrix.points import POD, REPEATED, RUN, Point
from tests.matrix.rig import Killed, Rented, call, kill_at
from tests.matrix.rules import check

pytestmark = pytest.mark.pods


@pytest.mark.parametrize("case", chosen(RUN), ids=lambda case: case.id)
def test_killed(project: Rented, case: Case) -> None:
    killed = kill_at(project, case.point, case.when, *AGAIN, lost=case.lost)
    said = FOLLOWS[case.then](project)
    keys, moved = rows_of(case.then), case.then == "reap"
    check(project, killed, said, keys=keys, codes=codes_of(case.then), moved=moved, unresolved=case.unresolved)


def test_every_call_is_a_point(project: Rented) -> None:
    """A call that this list does not have would never be held."""
    said = [call(project, *AGAIN, apart=True)]
    calls = [entry.target for entry in project.sandbox.calls(who="account")]
    for point in RUN:
        matching = [target for target in _since(calls, point.since) if re.search(point.match, target)]
        assert len(matching) >= point.nth, f"the run does not come to {point}:\n" + "\n".join(calls)
    for target in calls:
        assert any(re.search(point.match, target) for point in RUN), f"no point has {target}"
    for pattern in {point.match for point in RUN} - set(REPEATED):
        points = [point for point in RUN if point.match == pattern]
        matching = [target for target in calls if re.search(pattern, target)]
        assert len(matching) <= len(points), f"{len(points)} points for {matching}"
    check(project, Killed(Point("nowhere", POD), "before", False, ""), said, keys=ROWS)


def _since(calls: list[str], since: str) -> list[str]:
    if not since:
        return calls
    return calls[next(i for i, target in enumerate(calls) if re.search(since, target)) + 1 :]
