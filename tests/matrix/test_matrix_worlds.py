"""The client is killed while something else goes wrong too: see worlds.py."""

from __future__ import annotations

import pytest
from tests.matrix.cases import Case
from tests.matrix.follow import AGAIN, FOLLOWS, codes_of
from tests.matrix.rig import FEW, Rented, Said, call, kill_at
from tests.matrix.rules import check
from tests.matrix.worlds import World, worlds

pytestmark = pytest.mark.pods


@pytest.mark.parametrize(
    ("world", "case"), worlds(), ids=lambda each: each.name if isinstance(each, World) else each.id
)
def test_killed(project: Rented, world: World, case: Case) -> None:
    project.sandbox.quirks(**world.quirks)
    project.set(**world.target)
    project.env |= world.env
    world.first(project)
    words = (*AGAIN, *world.words)
    killed = kill_at(project, case.point, case.when, *words, lost=case.lost, more=world.faults)
    world.between(project)
    said = FOLLOWS[case.then](project) + _end_kept(project)
    check(
        project,
        killed,
        said,
        keys={**world.rows, **({"c": FEW} if case.then == "other" else {})},
        codes=(*world.codes, *codes_of(case.then)),
        twins=world.twins,
        moved=world.moved,
        unresolved=world.open or case.unresolved,
    )


def _end_kept(project: Rented) -> list[Said]:
    """What is kept is ended by hand."""
    found = call(project, "pod", "ls")
    kept = [each for each in found.report["pods"] if each["state"] == "kept"]
    return [found, *(call(project, "pod", "rm", each["pod"]) for each in kept)]
