"""The client's process ends before any of its acts: each request, each write of its record.

What comes next has only ``pod.json`` and the provider to go by. It must leave no pod and no secret, double nothing,
and account for every pod that ever was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.runpod import Fault, Sandbox
from tests.targets.runpod.acting import A5000, L4, Clock, Desk, Died

pytestmark = pytest.mark.long

CREATES = r"^POST /v2/pods$"
Scenario = tuple[list[Fault], dict[str, Any]]

SCENARIOS: dict[str, Scenario] = {
    "answer lost": ([Fault(CREATES, when="after", status=500, pod={"unlisted": 1})], {}),
    "twins": ([Fault(CREATES, when="after", drop=True, pod={"twin": True})], {}),
    "too dear": ([Fault(CREATES, pod={"price": 0.89})], {"gpu_types": (L4, A5000), "max_price_per_hour": 0.6}),
    "comes late": ([Fault(CREATES, when="after", drop=True, pod={"unlisted": 4})], {}),
}


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here processes die, not machines."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def again(running: Sandbox, tmp_path: Path) -> Callable[[Scenario], Desk]:
    """A fresh sandbox with a scenario, and a client on it."""
    count = iter(range(10_000))

    def begin(scenario: Scenario) -> Desk:
        running.reset()
        running.fault(*scenario[0])
        return Desk(running, Clock(running.advance), tmp_path / str(next(count)))

    return begin


def acts_of(desk: Desk, options: dict[str, Any]) -> int:
    desk.mortal.lives()
    desk.live(**options)
    desk.close()
    return len(desk.mortal.acts)


def die(desk: Desk, options: dict[str, Any], at: int) -> str:
    desk.mortal.dies(at)
    with pytest.raises(Died):
        desk.live(**options)
    what = f"before act {at}: {desk.mortal.acts[-1]}"
    desk.mortal.lives()
    return what


def hold_nothing_left(desk: Desk, what: str) -> None:
    record = desk.file.load()
    made = {event.pod for event in desk.sandbox.events("created")}
    gone = {attempt.pod for attempt in record.attempts if attempt.state == "gone" and attempt.gone_at}
    found = [desk.sandbox.pods(), desk.sandbox.secrets(), made ^ gone, {a.state for a in record.open} - {"unresolved"}]
    assert not any(found), f"{what}: {found}\n{desk.sandbox.told()}"
    if record.open:
        # What was unresolved so soon is settled in the end, and only then the run's keys are needed no more.
        desk.clock.sleep(1000)
        assert desk.end("seen later").open == [], what
    assert not desk.file.client_key.exists(), what
    assert not desk.file.known_hosts.exists(), what


@pytest.mark.parametrize("name", ["twins", "too dear", "comes late"])
def test_an_end_from_the_record_alone_leaves_nothing(again: Callable[[Scenario], Desk], name: str) -> None:
    scenario = SCENARIOS[name]
    acts = acts_of(again(scenario), scenario[1])
    assert acts > 15
    for at in range(1, acts + 1):
        desk = again(scenario)
        what = die(desk, scenario[1], at)
        desk.clock.sleep(60)
        if desk.end("its client died").open:
            desk.clock.sleep(60)
            desk.end("seen late")
        hold_nothing_left(desk, what)
        desk.close()


@pytest.mark.parametrize("name", ["answer lost", "comes late"])
def test_a_pod_from_the_record_alone_is_the_only_one(again: Callable[[Scenario], Desk], name: str) -> None:
    """But for one whose create had no answer and that no list shows yet: it is ended when it comes."""
    scenario = SCENARIOS[name]
    acts = acts_of(again(scenario), scenario[1])
    for at in range(1, acts + 1):
        desk = again(scenario)
        what = die(desk, scenario[1], at)
        desk.clock.sleep(60)
        attempt = desk.make(**scenario[1])
        others = [pod["name"] for pod in desk.sandbox.pods() if pod["id"] != attempt.pod]
        unseen = [each.name for each in desk.attempts if each.state == "unresolved"]
        assert set(others) <= set(unseen), f"{what}\n{desk.sandbox.told()}"
        assert attempt == desk.file.load().current
        if desk.end().open:
            desk.clock.sleep(60)
            desk.end("seen late")
        hold_nothing_left(desk, what)
        desk.close()
