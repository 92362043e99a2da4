"""The pod commits to the Hub by itself, and the client is killed; machines that never saw the run come next too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.cli.hub_machines import trained
from tests.doubles.hub import Hub
from tests.doubles.project import until
from tests.matrix.cases import ALL, Case
from tests.matrix.follow import AGAIN, FOLLOWS, codes_of
from tests.matrix.points import CREATE, RUN
from tests.matrix.rig import FEW, MORE, Rented, Rig, Said, call, kill_at, remove
from tests.matrix.rules import check

pytestmark = [pytest.mark.pods, pytest.mark.long]

POINTS = (
    "pods-elsewhere add-secret create connect-first limit wheel launch payload poll-more over logs delete last-list"
).split()
THENS = ("elsewhere", "attach", "same", "rm", "other")
GUARDS = {"boot_grace_minutes": 0.2, "lease_minutes": 0.1, "retrieve_grace_minutes": 0.1}
"""Short: a machine that never saw the run has no key of its pod, and waits until it has ended itself."""


class Machine(Rented):
    """A machine with nothing but its settings; the bucket is on the Hub, which pods reach under the same address."""

    def __init__(self, folder: Path, rig: Rig, hub: Hub, name: str) -> None:
        url = rig.sandbox.expose(hub.url)
        self.hub, self.url = hub, f"hf://buckets/u/{name}/pre"
        super().__init__(folder, rig.cloud, model=rig.model, toml=f'bucket = "{self.url}"')
        self.set(env={"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"})
        self.env |= hub.env(folder / "home/hf") | {"HF_ENDPOINT": url, "HF_XET_CLIENT_RETRY_BASE_DELAY": "20ms"}
        self.hidden.append(Hub.write)

    def trained(self) -> int:
        return trained(self.hub, self, self.url)


def cases() -> Iterator[Case]:
    """Each point from both sides, and everything that can follow in turns."""
    points = {point.name: point for point in RUN}
    for at, name in enumerate(POINTS):
        yield Case(points[name], ("lost", "late")[at % 2], THENS[2 * at % len(THENS)])
        yield Case(points[name], "after", THENS[(2 * at + 1) % len(THENS)])


@pytest.fixture
def machines(rig: Rig, plain_hub: Hub, tmp_path: Path) -> Iterator[list[Machine]]:
    rig.anew()
    yield [Machine(tmp_path / name, rig, plain_hub, tmp_path.name) for name in ("one", "two")]
    remove(tmp_path)


@pytest.mark.parametrize("case", list(cases()) if ALL else list(cases())[::12], ids=lambda case: case.id)
def test_killed(machines: list[Machine], case: Case) -> None:
    one, two = machines
    if case.then == "elsewhere":
        one.set(**GUARDS)
    killed = kill_at(one, case.point, case.when, *AGAIN, lost=case.lost)
    said = _elsewhere(one, two) if case.then == "elsewhere" else FOLLOWS[case.then](one)
    until(lambda: not one.sandbox.pods(), 60)
    keys: Mapping[str, int] = {"b": MORE} | ({"c": FEW} if case.then == "other" else {})
    # A pod that has ended itself before anybody looked for it is known from no list.
    unresolved = case.unresolved or (case.then == "elsewhere" and case.point.match == CREATE)
    check(one, killed, said, keys=dict(keys), codes=codes_of(case.then), unresolved=unresolved, others=[two])


def _elsewhere(one: Machine, two: Machine) -> list[Said]:
    """The same command on another machine; the first one comes back later, if it got as far as a run."""
    there = call(two, *AGAIN, apart=True)
    back = [call(one, "train", "attach", "last")] if one.runs() else []
    return [there, *back, call(one, *AGAIN)]
