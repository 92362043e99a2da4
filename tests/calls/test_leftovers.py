"""A pod that an ended run left: it may still commit, so it is ended before the next call looks at the head."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.calls.left import Left
from tests.targets.runpod.acting import RUN, Desk

from stepctl.base.errors import Exit
from stepctl.calls import leftovers
from stepctl.calls.leftovers import with_left
from stepctl.calls.reporting import report_of
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import PodAlive

pytestmark = pytest.mark.usefixtures("paced")


def test_what_it_commits_before_its_end_answers_the_call(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(desk, tmp_path / "p").cancelled()
    left.commits(monkeypatch)
    report = left.train()
    assert (report.replayed, report.exit_code, report.pod_alive, left.asked) == (True, 0, False, False)
    assert desk.sandbox.pods() == []
    assert desk.posts() == 1


def test_nothing_is_rented_beside_a_pod_that_may_commit(desk: Desk, tmp_path: Path) -> None:
    left = Left(desk, tmp_path / "p").cancelled()
    desk.sandbox.quirks(left.pod, undying=-1)
    for key in ("a", "b", None):
        with pytest.raises(PodAlive, match=f"{left.pod} .*may still train and commit for run {RUN}") as caught:
            left.train(key)
        assert caught.value.exit_code == Exit.POD_ALIVE
        assert caught.value.next == f"stepctl pod rm {RUN}"
    assert (left.asked, desk.posts(), left.world.store.names()) == (False, 1, [RUN])
    desk.sandbox.quirks(left.pod, undying=0)
    assert left.train().state == "cancelled"  # whoever was asked declined
    assert left.asked and desk.sandbox.pods() == []


def test_a_key_is_answered_beside_it_and_the_pod_is_told_of(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(desk, tmp_path / "p").cancelled()
    left.commits(monkeypatch)
    desk.sandbox.quirks(left.pod, undying=-1)
    report = left.train()
    assert (report.replayed, report.exit_code, report.pods_left) == (True, Exit.POD_ALIVE, [RUN])


@pytest.mark.parametrize("why", ["staged", "ended", "no job"])
def test_a_pod_that_cannot_commit_stops_no_call_but_is_told_of(desk: Desk, tmp_path: Path, why: str) -> None:
    left = Left(desk, tmp_path / "p").cancelled(**{"staged": {"staged": True}, "no job": {"job": None}}.get(why, {}))
    if why == "ended":
        left.world.store.job_dir(RUN).exit_code.write_text("0")
    desk.sandbox.quirks(left.pod, undying=-1)
    report = left.train()
    assert (left.asked, report.state, report.exit_code) == (True, "cancelled", Exit.POD_ALIVE)
    assert (report.pod_alive, report.pods_left) == (True, [RUN])


@pytest.mark.parametrize("state", ["kept", "gone", "unresolved"])
def test_what_is_wanted_or_gone_is_nobodys_rival(desk: Desk, tmp_path: Path, state: str) -> None:
    left = Left(desk, tmp_path / "p").cancelled()
    change(left.file, left.file.load().attempts[0], state=state, **({"pod": None} if state == "unresolved" else {}))
    assert leftovers.rivals(left.world, left.world.loaded.settings.bucket, "main") == []
    report = report_of(left.world.store.load(RUN))
    report.run = None
    assert with_left(left.world, report).pods_left == []


def test_another_lineage_is_not_held_up(desk: Desk, tmp_path: Path) -> None:
    left = Left(desk, tmp_path / "p").cancelled(bucket="elsewhere")
    desk.sandbox.quirks(left.pod, undying=-1)
    report = left.train()
    assert (left.asked, report.exit_code) == (True, Exit.CANCELLED)
