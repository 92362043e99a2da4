"""A run that has ended while its pod has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import Project, rows
from tests.targets.runpod.acting import RUN, Desk, run_record

from stepctl.base.names import iso
from stepctl.calls import leftovers
from stepctl.calls.away import target_options
from stepctl.calls.reporting import report_of
from stepctl.calls.request import TrainRequest, read_source
from stepctl.calls.train import train
from stepctl.calls.world import World
from stepctl.config.load import load_settings
from stepctl.runs.pods import PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord
from stepctl.targets.runpod.attempts import change


class Left:
    """A project of which a run was cancelled, whose pod nobody saw end. Whoever is asked whether to rent declines."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk, self.project = desk, Project(folder)
        toml = folder / "stepctl.toml"
        table = f'kind = "runpod"\nmax_hours = 1\npoll_seconds = 10\napi_url = "{desk.sandbox.url}"\n'
        toml.write_text(f'target = "cloud"\n{toml.read_text()}[targets.cloud]\n{table}')
        self.project.trace("a.jsonl", rows(4))
        self.notices: list[str] = []
        self.world = World(load_settings({}, {}, folder), now=desk.clock.now, wait=desk.clock.sleep, agree=self.agree)
        self.world.listener = self
        self.asked, self.run = False, RUN

    def event(self, event: object) -> None:
        pass

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def agree(self, _: object) -> bool:
        self.asked = True
        return False

    def cancelled(self, **changes: Any) -> Left:
        """Make the run and its pod; ``changes`` are those of its record."""
        settings = self.world.loaded.settings
        fields: dict[str, Any] = {
            "state": "cancelled",
            "staged": False,
            "job": ProcessId(pid=1, started=""),
            "bucket": settings.bucket,
            "run": RUN,
            **changes,
        }
        self.run = fields["run"]
        record = run_record(
            created_at=iso(self.desk.clock.utc()),
            model=settings.model,
            target_options=target_options(settings, "a"),
            key="a",
            trace=TraceRecord(paths=(), sha256="", rows_total=4),
            parent="root",
            new_root=False,
            **fields,
        )
        self.world.store.create(record)
        self.file = self.desk.file = PodFile(self.world.store.folder(self.run))
        self.file.save(PodRecord(run=self.run, target="cloud", account=self.desk.api.account))
        self.desk.make(run=self.run)
        now = iso(self.desk.clock.utc())
        change(self.file, self.file.load().attempts[0], state="ending", working_at=now, ending_at=now)
        if record.state == "running":
            return self
        report = report_of(record)
        report.pod_alive = True

        def ended(record: RunRecord) -> None:
            record.report = msgspec.to_builtins(report)

        self.world.store.update(self.run, ended)
        return self

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
