"""A kept pod changes hands whole, or not at all, and only to a call that may have it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.targets.runpod.acting import RUN, Desk, at

from stepctl.base.names import iso
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.targets.runpod import kept
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.end import end_all
from stepctl.targets.runpod.ready import wait_ready

TAKER = "20261130T051502917-2f9c0a"
OPTIONS = {"mark": "", "gpu_count": 1, "cloud": "SECURE"}


def options_of(file: PodFile, **options: Any) -> None:
    (file.folder / "run.json").write_text(json.dumps({"target_options": OPTIONS | options}))


def kept_pod(desk: Desk, **options: Any) -> Attempt:
    made = desk.make()
    options_of(desk.file, **options)
    desk.file.client_key.write_text("key")
    until = desk.clock.utc() + timedelta(minutes=30)
    return change(desk.file, made, state="kept", kept_until=iso(until), spent_usd=0.01)


@pytest.fixture
def taker(desk: Desk, tmp_path: Path) -> PodFile:
    """A second run of the same store."""
    folder = tmp_path / TAKER
    folder.mkdir()
    file = PodFile(folder)
    file.save(PodRecord(run=TAKER, target="cloud"))
    return file


def claim(desk: Desk, file: PodFile, **options: Any) -> Attempt | None:
    return kept.claim(file, OPTIONS | options, desk.api, desk.pace, desk.tell, lambda _: True)


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod is told over SSH, and these are records."""
    monkeypatch.setattr(kept, "_tell_pod", lambda *_: None)
    monkeypatch.setattr(kept, "_tell_run", lambda *_: None)


def test_it_changes_hands(desk: Desk, taker: PodFile) -> None:
    pod = kept_pod(desk, data_center_ids=("EU-RO-1",)).pod
    taken = claim(desk, taker, data_center_ids=("EU-RO-1",))
    assert taken is not None
    assert (taken.pod, taken.state, desk.states()) == (pod, "made", ["handed"])


@pytest.mark.parametrize(("was", "now"), [("a" * 64, "b" * 64), ("", "b" * 64), ("a" * 64, "")])
def test_a_pod_of_another_mark_is_not_taken(desk: Desk, taker: PodFile, was: str, now: str) -> None:
    """Its mark stays what it was made with: others would find it under the key of a call that it does not work for."""
    kept_pod(desk, mark=was)
    assert claim(desk, taker, mark=now) is None
    assert claim(desk, taker, mark=was) is not None


def test_a_pod_of_another_account_is_not_taken(desk: Desk, taker: PodFile) -> None:
    kept_pod(desk)
    desk.file.update(lambda record: setattr(record, "account", "0123456789abcdef"))
    assert claim(desk, taker) is None


def test_a_pod_needs_time_to_work_and_to_save(desk: Desk, taker: PodFile) -> None:
    """Two hours are its life: it asks its job to save five minutes before their end."""
    attempt = kept_pod(desk)
    for left, takes in ((599, False), (660, True)):
        change(desk.file, attempt, deadline_at=iso(desk.clock.utc() + timedelta(seconds=left)))
        created = at(iso(desk.clock.utc())) + timedelta(seconds=left - 7200)
        desk.file.update(lambda record, when=created: setattr(record.attempts[0], "created_at", iso(when)))  # type: ignore[misc]
        assert (claim(desk, taker) is not None) == takes


def test_a_call_that_died_between_the_two_writes_has_it(
    desk: Desk, taker: PodFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = kept_pod(desk)
    monkeypatch.setattr(kept, "change", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        claim(desk, taker)
    monkeypatch.undo()
    assert (desk.states(), taker.load().attempts[0].pod) == (["kept"], attempt.pod)
    third = PodFile(tmp_path / "third")
    third.folder.mkdir()
    third.save(PodRecord(run="third", target="cloud"))
    assert claim(desk, third) is None
    assert desk.states() == ["handed"]
    assert [pod["id"] for pod in desk.sandbox.pods()] == [attempt.pod]


def test_ending_the_run_that_left_it_does_not_end_it(desk: Desk, taker: PodFile) -> None:
    attempt = kept_pod(desk)
    begun = iso(desk.clock.utc())
    taken = msgspec.structs.replace(attempt, state="working", billed_from=begun)
    taker.update(lambda record: record.attempts.append(taken))
    desk.end("stepctl pod rm")
    assert desk.states() == ["handed"]
    assert [pod["id"] for pod in desk.sandbox.pods()] == [attempt.pod]
    end_all(desk.api, taker, desk.pace, "client", "its work is done")
    assert desk.sandbox.pods() == []


def test_what_else_is_open_is_ended_and_the_kept_pod_stays(desk: Desk) -> None:
    attempt = kept_pod(desk)
    name, now = f"stepctl-{RUN}-9", iso(desk.clock.utc())
    late = msgspec.structs.replace(attempt, name=name, pod=None, state="unresolved", asked_at=now, spent_usd=None)
    desk.file.update(lambda record: record.attempts.insert(0, late))
    end_all(desk.api, desk.file, desk.pace, "client", "done", spare_kept=True)
    assert desk.states() == ["unresolved", "kept"]
    desk.clock.sleep(1000)
    end_all(desk.api, desk.file, desk.pace, "client", "done", spare_kept=True)
    assert desk.states() == ["refused", "kept"]
    assert desk.file.client_key.exists()
    calls = len(desk.sandbox.calls())
    end_all(desk.api, desk.file, desk.pace, "client", "done", spare_kept=True)
    assert len(desk.sandbox.calls()) == calls
    assert [pod["id"] for pod in desk.sandbox.pods()] == [attempt.pod]
    assert desk.end().open == []


def test_a_taken_pod_has_its_whole_time_to_let_the_call_in(desk: Desk) -> None:
    made = desk.make()
    desk.clock.sleep(5000)
    desk.file.update(lambda record: setattr(record, "host_key", "ssh-ed25519 AAAA"))
    taken = change(desk.file, made, billed_from=iso(desk.api.server_time() or desk.clock.utc()))
    words = iter(["closed"] * 20 + ["ok"])
    ready = wait_ready(
        desk.api,
        desk.file,
        taken,
        lambda *_: next(words),
        desk.pace,
        desk.tell,
        grace=1800,  # type: ignore[arg-type,return-value]
    )
    assert ready.state == "ready"
