"""Waiting for the pod of the same ``--key`` elsewhere: looked for with patience, ended only when idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.targets.runpod.acting import L4, Clock, Desk

from stepctl.calls import elsewhere
from stepctl.calls.away import mark_of
from stepctl.calls.elsewhere import wait_elsewhere
from stepctl.calls.prepare import Prepared
from stepctl.calls.request import TrainRequest
from stepctl.calls.world import World
from stepctl.config.load import load_settings
from stepctl.targets.runpod.logs import standing
from stepctl.targets.runpod.records import Pod
from stepctl.targets.runpod.wants import body_of

HUB, FOLDER = "hf://buckets/me/traces", "checkpoints"
Go = Callable[..., None]


def world_of(desk: Desk, tmp_path: Path, bucket: str) -> World:
    (tmp_path / "stepctl.toml").write_text(
        f'bucket = "{bucket}"\ntarget = "cloud"\n[targets.cloud]\nkind = "runpod"\nmax_hours = 1\n'
        f'api_url = "{desk.sandbox.url}"\n'
    )
    return World(load_settings({}, {}, tmp_path), now=desk.clock.now, wait=desk.clock.sleep)


def go(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch, *, committed_after: float, timeout: float | None = None
) -> None:
    """The call, and when the key is committed by somebody."""
    begun = desk.clock.now()
    monkeypatch.setattr(elsewhere, "standing", partial(standing, silence=0.2))
    monkeypatch.setattr(elsewhere, "_committed", lambda *_: desk.clock.now() - begun >= committed_after)
    request = cast(TrainRequest, SimpleNamespace(key="k", timeout=timeout, no_wait=False))
    wait_elsewhere(world, request, cast(Prepared, SimpleNamespace(settings=world.loaded.settings)))


def theirs(world: World, desk: Desk, **env: Any) -> Pod:
    mark = mark_of(world.loaded.settings, "k")
    wants = replace(desk.wants(), run="theirs", env={"STEPCTL_MARK": mark, **env})
    return desk.api.create(body_of(wants, "stepctl-theirs-1", L4, 0.39))


@pytest.mark.parametrize(("bucket", "lists"), [(HUB, 3), (FOLDER, 1)])
def test_only_several_lists_say_that_there_is_none(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str, lists: int
) -> None:
    world = world_of(desk, tmp_path, bucket)
    go(world, desk, monkeypatch, committed_after=1e9)
    assert len(desk.sandbox.calls("GET /v2/pods$")) == lists
    assert desk.clock.waited == 10 * (lists - 1)


def test_a_list_that_lags_does_not_train_twice(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(desk, tmp_path, HUB)
    pod = theirs(world, desk)
    desk.sandbox.quirks(pod.id, unlisted=2)
    desk.sandbox.add_log(pod.id, "stepctl-watchdog: the job has ended")
    go(world, desk, monkeypatch, committed_after=100)
    assert desk.clock.waited >= 100
    assert desk.sandbox.pods() == []


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ("the job has started: /root/.stepctl/runs/theirs", False),
        ("is kept for the next call, for 1800 s", False),
        ("the job is gone: its process died", True),
    ],
)
def test_a_pod_that_may_work_for_somebody_else_is_left_alone(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, ends: bool
) -> None:
    world = world_of(desk, tmp_path, HUB)
    pod = theirs(world, desk)
    for line in ("the job has started: x", "the job has ended", said):
        desk.sandbox.add_log(pod.id, f"stepctl-watchdog: {line}")
    go(world, desk, monkeypatch, committed_after=15)
    assert (desk.sandbox.pods() == []) == ends


class Watched(Clock):
    """Its time brings the words of a pod's watchdog."""

    def __init__(self, desk: Desk, pod: str, words: dict[float, str]) -> None:
        super().__init__(desk.sandbox.advance)
        self._desk, self._pod, self._words = desk, pod, words

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        for at in [at for at in self._words if at <= self.waited]:
            self._desk.sandbox.add_log(self._pod, f"stepctl-watchdog: {self._words.pop(at)}")


def watched(desk: Desk, world: World, **words: str) -> Watched:
    """From now on, and the pod of somebody else; ``words`` are said at seconds (``at_40``)."""
    pod = theirs(world, desk)
    desk.clock = Watched(desk, pod.id, {float(at[3:]): said for at, said in words.items()})
    world.now, world.wait = desk.clock.now, desk.clock.sleep
    return desk.clock


def test_the_end_of_the_job_is_waited_for_after_its_commit(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog tells of it at its next look, and the pod would bill on for a client that is gone."""
    world = world_of(desk, tmp_path, HUB)
    clock = watched(desk, world, at_10="the job has started: x", at_70="the job has ended")
    go(world, desk, monkeypatch, committed_after=25)
    assert desk.sandbox.pods() == []
    assert 70 <= clock.waited < 120


def test_a_list_that_lags_after_the_commit_leaves_no_pod(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(desk, tmp_path, HUB)
    watched(desk, world, at_10="the job has ended")
    real, looks = elsewhere.sweep, []

    def lagging(*args: Any, **options: Any) -> Any:
        looks.append(1)
        found = real(*args, **options)
        return replace(found, pods=[]) if len(looks) in (3, 4) else found

    monkeypatch.setattr(elsewhere, "sweep", lagging)
    go(world, desk, monkeypatch, committed_after=15)
    assert desk.sandbox.pods() == []


@pytest.mark.parametrize(("timeout", "most"), [(None, 25 + 120 + 20), (60, 60 + 20), (26, 26 + 20)])
def test_that_wait_has_its_bounds(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout: float | None, most: float
) -> None:
    """A pod that goes on works for somebody else, or is stuck: its own guard ends it."""
    world = world_of(desk, tmp_path, HUB)
    clock = watched(desk, world, at_10="the job has started: x")
    go(world, desk, monkeypatch, committed_after=25, timeout=timeout)
    assert len(desk.sandbox.pods()) == 1
    assert most - 40 <= clock.waited <= most


def test_a_kept_pod_is_not_waited_for(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(desk, tmp_path, HUB)
    clock = watched(desk, world, at_10="is kept for the next call, for 1800 s")
    go(world, desk, monkeypatch, committed_after=25)
    assert len(desk.sandbox.pods()) == 1
    assert clock.waited <= 40


def test_a_pod_past_its_end_is_not_waited_for(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(desk, tmp_path, HUB)
    theirs(world, desk)
    desk.clock.sleep(7200 + 300)
    go(world, desk, monkeypatch, committed_after=1e9)
    assert desk.sandbox.pods() == []
