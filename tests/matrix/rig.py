"""One sandbox for many runs, projects that rent from it, and killing their command line at one point."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.doubles import rented
from tests.doubles.project import rows
from tests.doubles.rented import Cloud, Stage
from tests.doubles.runpod import Fault, Sandbox
from tests.doubles.runpod.faults import When
from tests.doubles.trained import Chain
from tests.matrix.points import Point

SENTINEL = "zqj-sentinel-row"
"""In every example: where it is seen, an example is."""

FIRST, MORE, FEW = 4, 6, 3
"""Rows of the keys k0 (trained already), b (whose client is killed) and c."""


class Rented(rented.Rented):
    """A project that rents. ``hidden``: what must be nowhere."""

    def __init__(self, folder: Path, cloud: Cloud, *, model: Path, toml: str = "") -> None:
        super().__init__(folder, cloud, model=model, toml=toml)
        self.hidden = [SENTINEL, self.sandbox.key, "PRIVATE KEY"]
        self.trace("b.jsonl", told(rows(MORE, 100)))
        self.trace("c.jsonl", told(rows(FEW, 200)))

    def begin(self, *args: object) -> subprocess.Popen[str]:
        """Call the command line and do not wait; what it says is in ``out`` and ``err``."""
        with (self.path / "out").open("w") as out, (self.path / "err").open("w") as err:
            return subprocess.Popen(
                self.command(*args),
                cwd=self.path,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )


def told(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the sentinel in what is trained."""
    for row in data:
        row["messages"][1]["content"] += f" {SENTINEL}"
    return data


class Rig:
    """What all cases of one worker share."""

    def __init__(self, folder: Path) -> None:
        self.chain = Chain(made(folder / "chain"))
        self.model = self.chain.project.model
        stage = Stage(folder / "stage")
        sandbox = Sandbox(folder / "sandbox", pods="netns", show=stage.shown, python=True)
        self.cloud, self.sandbox = Cloud(sandbox, stage), sandbox

    @contextmanager
    def running(self) -> Iterator[Rig]:
        with self.sandbox:
            yield self

    def anew(self) -> None:
        """The sandbox without any past."""
        quicken(self.cloud)

    def project(self, folder: Path) -> Rented:
        """A new project with one step in its lineage, on a sandbox without any past."""
        self.anew()
        project = Rented(folder, self.cloud, model=self.model)
        self.chain.into(project, 1)
        return project


def quicken(cloud: Cloud) -> None:
    """Begin without any past; what comes over SSH is told, and the account's rate limit is out of reach."""
    cloud.reset()
    cloud.sandbox.quirks(ssh_calls=True)
    cloud.sandbox.settings(minute=10_000)


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@dataclass
class Said:
    """One command that was called, and how it ended."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out)
        return answer


@dataclass
class Killed:
    """A client that was killed, and what was seen before it was mourned."""

    point: Point
    when: When
    lost: bool
    told: str
    leaks: list[str] = field(default_factory=list)


def kill_at(
    project: Rented, point: Point, when: When, *args: str, lost: bool = False, more: tuple[Fault, ...] = ()
) -> Killed:
    """Call the command line, and kill it while that call is held; then the call goes on, or is lost.

    Raises:
        AssertionError: it ended without coming there.
    """
    sandbox = project.sandbox
    sandbox.fault(point.fault(when), *more)
    client = project.begin(*args)
    try:
        held = sandbox.wait_held(seconds=120, unless=lambda: client.poll() is not None)
        assert held, f"it ended with {client.poll()} and never came to {point}:\n{_words(project)}\n{sandbox.told()}"
    finally:
        if client.poll() is None:
            os.killpg(client.pid, signal.SIGKILL)
        client.wait()
    killed = Killed(point, when, lost, _words(project))
    killed.leaks = leaks(project)
    sandbox.release(lost=lost)
    _settle(sandbox)
    return killed


def leaks(project: Rented) -> list[str]:
    """Where pods and their logs have what they must not have. Their own host's key is theirs."""
    places = [place for text in project.hidden for place in project.sandbox.search(text)]
    return [place for place in places if not place.endswith(":/var/lib/stepctl/host_key")]


def _words(project: Rented) -> str:
    return (project.path / "out").read_text() + (project.path / "err").read_text()


def _settle(sandbox: Sandbox) -> None:
    """What was held has its effect, or none, and nobody who was killed has anything under way."""
    time.sleep(0.05)
    assert not sandbox.held()


def call(project: Rented, *args: str, apart: bool = False) -> Said:
    """Call the command line, in this process unless ``apart``."""
    done = (project.run if apart else project.call)(*args, "--json")
    return Said(args, done.returncode, done.stdout, done.stderr)


def remove(folder: Path) -> None:
    """A case's folder: there are hundreds."""
    shutil.rmtree(folder, ignore_errors=True)
