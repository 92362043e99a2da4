"""What the tests of this folder share: a clock, a client that can die at any of its acts, and its record."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from tests.doubles.runpod import Sandbox

from stepctl.base.names import utc_now
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord
from stepctl.targets.base import Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.create import make_pod
from stepctl.targets.runpod.end import end_all
from stepctl.targets.runpod.keys import prepare_keys
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.ready import wait_ready
from stepctl.targets.runpod.wants import Wants

RUN = "20261130T041502917-1f9c0a"
A40, A5000, L4, RTX3090 = "NVIDIA A40", "NVIDIA RTX A5000", "NVIDIA L4", "NVIDIA GeForce RTX 3090"
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"


class Clock:
    """Waiting takes no time: it moves this clock, and the provider's with it."""

    def __init__(self, also: Callable[[float], Any] = lambda _: None) -> None:
        self.waited = 0.0
        self._also = also

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.waited += seconds
        self._also(seconds)

    def now(self) -> float:
        return time.monotonic() + self.waited

    def utc(self) -> datetime:
        return utc_now() + timedelta(seconds=self.waited)

    def pace(self, poll_seconds: float = 10.0) -> Pace:
        return Pace(poll_seconds, self.sleep, self.now, self.utc)


def run_record(run: str = RUN, **fields: Any) -> RunRecord:
    """The record of a run that rents; ``fields`` in the place of these."""
    usual: dict[str, Any] = {
        "created_at": "",
        "updated_at": "",
        "state": "running",
        "method": "sft",
        "model": "m",
        "bucket": "b",
        "lineage": "main",
        "target": "cloud",
        "key": None,
        "trace": TraceRecord(paths=(), sha256="", rows_total=0),
        "eval": None,
        "parent": "",
        "from_step": 0,
        "steps_planned": 1,
        "new_root": True,
        "client": ProcessId(pid=1, started=""),
    }
    return RunRecord(run=run, **(usual | fields))


class Died(BaseException):
    """The process ended here, whatever it was about to do."""


class Mortal:
    """Counts acts, and dies before one of them. ``at`` 0: never.

    Dying after an act, or while it is under way and its effect is there, leaves the same behind as dying before the
    next one: nothing else outlives the process.
    """

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.at = 0

    def dies(self, at: int) -> None:
        self.acts, self.at = [], at

    def lives(self) -> None:
        self.dies(0)

    def act(self, what: str) -> None:
        self.acts.append(what)
        if len(self.acts) == self.at:
            raise Died


class MortalTransport(httpx.HTTPTransport):
    """Each request is an act."""

    def __init__(self, mortal: Mortal) -> None:
        super().__init__(verify=False)  # plain http: reading the certificates takes 60 ms
        self._mortal = mortal

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._mortal.act(f"{request.method} {request.url.path}")
        return super().handle_request(request)


class MortalFile(PodFile):
    """Each write is an act."""

    def __init__(self, folder: Path, mortal: Mortal) -> None:
        super().__init__(folder)
        self._mortal = mortal

    def save(self, record: PodRecord) -> None:
        self._mortal.act("write")
        super().save(record)


class Desk:
    """A client of one run: what it has in its hands, and what it does in order."""

    def __init__(self, sandbox: Sandbox, clock: Clock, folder: Path) -> None:
        self.sandbox, self.clock = sandbox, clock
        self.mortal = Mortal()
        self.http = httpx.Client(transport=MortalTransport(self.mortal))
        self.api = Api(sandbox.url, sandbox.key, http=self.http, sleep=clock.sleep, now=clock.now)
        self.pace = clock.pace()
        self.told: list[str] = []
        self.tell = Teller(self.told.append)
        folder.mkdir()
        self.file: PodFile = MortalFile(folder, self.mortal)
        self.file.save(PodRecord(run=RUN, target="cloud"))

    def close(self) -> None:
        self.http.close()

    def wants(self, **changes: Any) -> Wants:
        return Wants(**{"run": RUN, "max_hours": 2.0, "image": IMAGE, "gpu_types": (L4,), **changes})

    def make(self, **changes: Any) -> Attempt:
        return make_pod(self.api, self.file, self.wants(**changes), self.pace, self.tell)

    def end(self, reason: str = "done") -> PodRecord:
        return end_all(self.api, self.file, self.pace, "client", reason)

    def live(self, **changes: Any) -> None:
        """A whole life: keys, pod, login, end."""
        keys = prepare_keys(self.api, self.file)
        env = {"PUBLIC_KEY": keys.client} | ({"STEPCTL_HOST_KEY": keys.host} if keys.host else {})
        attempt = self.make(env=env, **changes)
        wait_ready(self.api, self.file, attempt, lambda *_: "ok", self.pace, self.tell, grace=1800)
        self.end()

    @property
    def attempts(self) -> list[Attempt]:
        return self.file.load().attempts

    def states(self) -> list[str]:
        return [attempt.state for attempt in self.attempts]

    def posts(self) -> int:
        return len(self.sandbox.calls(r"^POST /v2/pods$"))

    def created(self) -> int:
        return len(self.sandbox.events("created"))


def at(text: str | None) -> datetime:
    """A recorded time."""
    assert text
    return datetime.fromisoformat(text).astimezone(UTC)
