"""A pod that an ended run left: it may still commit, so it is ended before the next call looks at the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import Project, rows
from tests.doubles.runpod import Sandbox
from tests.targets.runpod.acting import RUN, Clock, Desk

from stepctl.base.errors import Exit
from stepctl.base.names import iso
from stepctl.calls import leftovers
from stepctl.calls.away import target_options
from stepctl.calls.leftovers import with_left
from stepctl.calls.reporting import report_of
from stepctl.calls.request import TrainRequest, read_source
from stepctl.calls.train import train
from stepctl.calls.world import World
from stepctl.config.load import load_settings
from stepctl.runs.pods import PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord
from stepctl.targets.runpod import machine
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import PodAlive


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
        yield sandbox


@pytest.fixture
def desk(running: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    running.reset()
    monkeypatch.setenv("RUNPOD_API_KEY", running.key)
    desk = Desk(running, Clock(running.advance), tmp_path / "elsewhere")
    monkeypatch.setattr(machine, "Pace", lambda seconds, sleep: desk.clock.pace(seconds))
    yield desk
    desk.close()
    running.check()


class Left:
    """A project of which a run was cancelled, whose pod nobody saw end; ``rent`` is what calls are asked."""

    def __init__(self, desk: Desk, folder: Path, **changes: Any) -> None:
        self.desk, self.project = desk, Project(folder)
        toml = folder / "stepctl.toml"
        table = f'kind = "runpod"\nmax_hours = 1\npoll_seconds = 10\napi_url = "{desk.sandbox.url}"\n'
        toml.write_text(f'target = "cloud"\n{toml.read_text()}[targets.cloud]\n{table}')
        self.project.trace("a.jsonl", rows(4))
        self.notices: list[str] = []
        self.world = World(load_settings({}, {}, folder), now=desk.clock.now, wait=desk.clock.sleep, agree=self.agree)
        self.world.listener = self
        self.asked = False
        self.cancelled(**changes)

    def event(self, event: object) -> None:
        pass

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def agree(self, _: object) -> bool:
        self.asked = True
        return False

    def cancelled(self, **changes: Any) -> None:
        settings = self.world.loaded.settings
        fields: dict[str, Any] = {
            "state": "cancelled",
            "staged": False,
            "job": ProcessId(pid=1, started=""),
            "bucket": settings.bucket,
            **changes,
        }
        record = RunRecord(
            run=RUN,
            created_at="",
            updated_at="",
            method="sft",
            model=settings.model,
            lineage="main",
            target="cloud",
            target_options=target_options(settings, "a"),
            key="a",
            trace=TraceRecord(paths=(), sha256="", rows_total=4),
            eval=None,
            parent="root",
            from_step=0,
            steps_planned=1,
            new_root=False,
            client=ProcessId(pid=1, started=""),
            **fields,
        )
        self.world.store.create(record)
        self.file = self.desk.file = PodFile(self.world.store.folder(RUN))
        self.file.save(PodRecord(run=RUN, target="cloud", account=self.desk.api.account))
        self.desk.make(run=RUN)
        now = iso(self.desk.clock.utc())
        change(self.file, self.file.load().attempts[0], state="ending", working_at=now, ending_at=now)
        report = report_of(record)
        report.pod_alive = True

        def ended(record: RunRecord) -> None:
            record.report = msgspec.to_builtins(report)

        self.world.store.update(RUN, ended)

    @property
    def pod(self) -> str:
        return str(self.file.load().attempts[0].pod)

    def commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The pod commits its key in the moment in which its end is asked for."""
        real: Callable[..., RunRecord] = leftovers.reclaim

        def late(world: World, record: RunRecord) -> RunRecord:
            self.project.train("a.jsonl", "--key", "a", "--target", "local", env={"STEPCTL_RUNS": "other"})
            return real(world, record)

        monkeypatch.setattr(leftovers, "reclaim", late)

    def train(self, key: str | None = "a") -> Any:
        path = self.project.path / "a.jsonl"
        request = TrainRequest(paths=(str(path),), sources=(read_source(str(path)),), key=key)
        return train(self.world, request)


def test_what_it_commits_before_its_end_answers_the_call(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Left(desk, tmp_path / "p")
    left.commits(monkeypatch)
    report = left.train()
    assert (report.replayed, report.exit_code, report.pod_alive, left.asked) == (True, 0, False, False)
    assert desk.sandbox.pods() == []
    assert desk.posts() == 1


def test_nothing_is_rented_beside_a_pod_that_may_commit(desk: Desk, tmp_path: Path) -> None:
    left = Left(desk, tmp_path / "p")
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
    left = Left(desk, tmp_path / "p")
    left.commits(monkeypatch)
    desk.sandbox.quirks(left.pod, undying=-1)
    report = left.train()
    assert (report.replayed, report.exit_code, report.pods_left) == (True, Exit.POD_ALIVE, [RUN])


@pytest.mark.parametrize("why", ["staged", "ended", "no job"])
def test_a_pod_that_cannot_commit_stops_no_call_but_is_told_of(desk: Desk, tmp_path: Path, why: str) -> None:
    left = Left(desk, tmp_path / "p", **{"staged": {"staged": True}, "no job": {"job": None}}.get(why, {}))
    if why == "ended":
        left.world.store.job_dir(RUN).exit_code.write_text("0")
    desk.sandbox.quirks(left.pod, undying=-1)
    report = left.train()
    assert (left.asked, report.state, report.exit_code) == (True, "cancelled", Exit.POD_ALIVE)
    assert (report.pod_alive, report.pods_left) == (True, [RUN])


@pytest.mark.parametrize("state", ["kept", "gone", "unresolved"])
def test_what_is_wanted_or_gone_is_nobodys_rival(desk: Desk, tmp_path: Path, state: str) -> None:
    left = Left(desk, tmp_path / "p")
    change(left.file, left.file.load().attempts[0], state=state, **({"pod": None} if state == "unresolved" else {}))
    assert leftovers.rivals(left.world, left.world.loaded.settings.bucket, "main") == []
    report = report_of(left.world.store.load(RUN))
    report.run = None
    assert with_left(left.world, report).pods_left == []


def test_another_lineage_is_not_held_up(desk: Desk, tmp_path: Path) -> None:
    left = Left(desk, tmp_path / "p", bucket="elsewhere")
    desk.sandbox.quirks(left.pod, undying=-1)
    report = left.train()
    assert (left.asked, report.exit_code) == (True, Exit.CANCELLED)
