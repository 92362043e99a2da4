"""The client is killed while something else goes wrong too: see worlds.py."""

from __future__ import annotations

import os
import signal

import pytest
from tests.doubles.project import until
from tests.matrix.cases import ALL, Case
from tests.matrix.follow import AGAIN, ALL_FOLLOWS, ROWS, codes_of
from tests.matrix.points import CREATE, PODS
from tests.matrix.rig import FEW, Killed, Rented, Said, call, kill_at
from tests.matrix.rules import check
from tests.matrix.worlds import POINTS, SHORT, World, nobody, worlds

pytestmark = [pytest.mark.pods, pytest.mark.long]


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
    said = ALL_FOLLOWS[case.then](project) + _end_kept(project)
    # A pod that has ended itself before anybody looked for it is known from no list.
    unseen = world.between is nobody and case.point.match == CREATE
    check(
        project,
        killed,
        said,
        keys={**world.rows, **({"c": FEW} if case.then == "other" else {})},
        codes=(*world.codes, *codes_of(case.then)),
        twins=world.twins,
        moved=world.moved,
        unresolved=world.open or case.unresolved or unseen,
    )


def _end_kept(project: Rented) -> list[Said]:
    """What is kept is ended by hand."""
    found = call(project, "pod", "ls")
    kept = [each for each in found.report["pods"] if each["state"] == "kept"]
    return [found, *(call(project, "pod", "rm", each["pod"]) for each in kept)]


@pytest.mark.parametrize("then", ["same", "attach"])
@pytest.mark.parametrize("lists", [1, 3, 5, 7] if ALL else [3])
def test_a_create_that_is_under_way_while_somebody_looks_for_its_pod(project: Rented, lists: int, then: str) -> None:
    """The pod comes when the next command has looked for it so often."""
    project.set(**SHORT)
    sandbox = project.sandbox
    sandbox.fault(POINTS["create"].fault("before"))
    client = project.begin(*AGAIN)
    assert sandbox.wait_held(unless=lambda: client.poll() is not None)
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()
    before = len(sandbox.calls(PODS))
    words = AGAIN if then == "same" else ("train", "attach", "last")
    process = project.begin(*words, "--json")
    until(lambda: len(sandbox.calls(PODS)) >= before + lists or process.poll() is not None)
    sandbox.release()
    process.wait(60)
    said = Said(words, process.returncode, (project.path / "out").read_text(), (project.path / "err").read_text())
    until(lambda: not sandbox.pods(), 60)
    killed = Killed(POINTS["create"], "before", False, "")
    check(project, killed, [said, call(project, *AGAIN)], keys=ROWS, twins=1, unresolved=True)
