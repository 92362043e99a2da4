"""What of the account is ours, who knows of it, and ending it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import L4, RUN, Desk, run_record

from stepctl.runs.pods import PodFile, PodRecord
from stepctl.runs.store import RunStore
from stepctl.targets.runpod.end import end_all
from stepctl.targets.runpod.errors import PodAlive
from stepctl.targets.runpod.keys import prepare_keys
from stepctl.targets.runpod.records import Pod
from stepctl.targets.runpod.sweep import Rented, Sweep, end_rented, sweep
from stepctl.targets.runpod.wants import body_of

OTHER = "20261129T101112345-aaaaaa"


@pytest.fixture
def store(tmp_path: Path, desk: Desk) -> RunStore:
    """A store in which the desk's run is."""
    store = RunStore(tmp_path / "runs")
    store.create(run_record())
    desk.file = PodFile(store.folder(RUN))
    desk.file.save(PodRecord(run=RUN, target="cloud"))
    return store


def look(desk: Desk, store: RunStore) -> Sweep:
    return sweep(desk.api, store, desk.pace)


def foreign(desk: Desk, name: str, run: str = OTHER, **env: str) -> Pod:
    body = body_of(replace(desk.wants(), run=run, env=env), name, L4, 0.39)
    return desk.api.create(body)


def only(found: Sweep) -> Rented:
    [rented] = found.pods
    return rented


def test_a_pod_of_a_run_that_is_known_here(desk: Desk, store: RunStore) -> None:
    made = desk.make(max_cost_usd=0.39, env={"STEPCTL_MARK": "m" * 64})
    desk.clock.sleep(1800)
    rented = only(look(desk, store))
    assert (rented.pod.id, rented.run, rented.stray, rented.mark) == (made.pod, RUN, False, "m" * 64)
    assert rented.attempt is not None
    assert rented.attempt.state == "made"
    assert rented.age == pytest.approx(1800, abs=3)
    assert rented.price == 0.39
    assert rented.spent_usd == pytest.approx(0.195, abs=0.001)
    assert rented.deadline is not None
    assert rented.pod.created is not None
    assert (rented.deadline - rented.pod.created).total_seconds() == 3600
    assert not rented.past_deadline
    desk.clock.sleep(1800 + 60)
    assert not only(look(desk, store)).past_deadline  # it may be ending itself just now
    desk.clock.sleep(120)
    assert only(look(desk, store)).past_deadline


def test_strays(desk: Desk, store: RunStore) -> None:
    """One of a run of another machine, one that the record calls gone; not those of other programs."""
    made = desk.make()
    foreign(desk, f"stepctl-{OTHER}-1")
    desk.api.create(body_of(desk.wants(), "my-own-pod", L4, 0.39))
    record = desk.file.load()
    record.attempts[0].state = "gone"
    desk.file.save(record)
    found = look(desk, store)
    assert sorted((each.run, each.stray) for each in found.pods) == [(OTHER, True), (RUN, True)]
    assert {each.pod.id: each.attempt is None for each in found.pods}[made.pod or ""] is False


def test_a_name_alone_does_not_make_a_pod_ours(desk: Desk, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [Pod(id="a", name=f"stepctl-{OTHER}-1"), Pod(id="b", name="stepctl-x", env={"STEPCTL_RUN": "x"})]
    monkeypatch.setattr(desk.api, "pods", lambda: pods)
    assert look(desk, store).pods == []


def test_the_pod_of_an_unresolved_create_is_no_stray(desk: Desk, store: RunStore) -> None:
    desk.sandbox.fault(Fault("^POST /v2/pods$", drop=True, when="after", pod={"unlisted": 4}))
    desk.make()
    assert sorted(each.stray for each in look(desk, store).pods) == [False, False]


@pytest.mark.parametrize("seconds", ["", "soon", "-5", "٣"])
def test_a_pod_without_a_deadline_is_never_past_it(desk: Desk, store: RunStore, seconds: str, monkeypatch: Any) -> None:
    pod = Pod(id="a", name=f"stepctl-{OTHER}-1", created_at="2020-01-01T00:00:00Z")
    env: dict[str, str | None] = {"STEPCTL_RUN": OTHER, "STEPCTL_MAX_SECONDS": seconds}
    monkeypatch.setattr(desk.api, "pods", lambda: [Pod(id="a", name=pod.name, created_at=pod.created_at, env=env)])
    rented = only(look(desk, store))
    assert (rented.deadline, rented.past_deadline, rented.price, rented.spent_usd) == (None, False, None, None)


def test_a_record_that_cannot_be_read_is_told(desk: Desk, store: RunStore) -> None:
    desk.make()
    desk.file.path.write_text("{")
    found = look(desk, store)
    assert list(found.unreadable) == [RUN]
    assert only(found).stray


def test_leftover_secrets(desk: Desk, store: RunStore) -> None:
    prepare_keys(desk.api, desk.file)
    desk.make()
    desk.api.add_secret("hf_token", "x")
    desk.api.add_secret("stepctl_20261129T101112345_aaaaaa", "x")
    assert look(desk, store).secrets == []  # as young as a call that has not asked for its pod yet
    desk.clock.sleep(3700)
    assert [secret.name for secret in look(desk, store).secrets] == ["stepctl_20261129T101112345_aaaaaa"]
    end_all(desk.api, desk.file, desk.pace, "client", "done")
    assert len(look(desk, store).secrets) == 1
    desk.sandbox.fault(Fault("/account/secrets", status=403, times=0))
    assert look(desk, store).secrets == []


def test_ending_one_that_is_known_leaves_its_receipt(desk: Desk, store: RunStore) -> None:
    made = desk.make()
    receipt = end_rented(desk.api, store, only(look(desk, store)), desk.pace, "reaper", "past its deadline")
    assert receipt is not None
    assert (receipt.pod, receipt.state, receipt.ended_by, receipt.reason) == (
        made.pod,
        "gone",
        "reaper",
        "past its deadline",
    )
    assert desk.attempts == [receipt]
    assert desk.sandbox.pods() == []


def test_ending_one_that_the_run_did_not_know(desk: Desk, store: RunStore) -> None:
    foreign(desk, f"stepctl-{RUN}-4", RUN)
    receipt = end_rented(desk.api, store, only(look(desk, store)), desk.pace, "reaper", "nobody waits for it")
    assert desk.attempts == [receipt]
    assert desk.sandbox.pods() == []


def test_ending_one_that_the_record_calls_gone(desk: Desk, store: RunStore) -> None:
    desk.make()
    record = desk.file.load()
    record.attempts[0].state = "gone"
    desk.file.save(record)
    end_rented(desk.api, store, only(look(desk, store)), desk.pace, "reaper", "it lives")
    assert desk.sandbox.pods() == []
    assert desk.states() == ["gone"]
    assert desk.attempts[0].ended_by == "reaper"


def test_ending_one_whose_record_cannot_be_read(desk: Desk, store: RunStore) -> None:
    desk.make()
    desk.file.path.write_text("{")
    assert end_rented(desk.api, store, only(look(desk, store)), desk.pace, "reaper", "x") is None
    assert desk.sandbox.pods() == []


def test_ending_one_of_another_machine(desk: Desk, store: RunStore) -> None:
    pod = foreign(desk, f"stepctl-{OTHER}-1")
    assert end_rented(desk.api, store, only(look(desk, store)), desk.pace, "reaper", "x") is None
    assert desk.sandbox.pods() == []
    pod = foreign(desk, f"stepctl-{OTHER}-2")
    desk.sandbox.quirks(pod.id, undying=-1)
    with pytest.raises(PodAlive, match=pod.id):
        end_rented(desk.api, store, only(look(desk, store)), desk.pace, "reaper", "x")
