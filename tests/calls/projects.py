"""What the histories are made of: projects, their calls, jobs that are held, and where a job ends."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.calls.rules import Ask, Run
from tests.doubles.forked import Client

BEFORE_STEPS = ("judging", "imports", "model", "data", "steps")


@dataclass(frozen=True)
class Call:
    """One ``stepctl train``."""

    ask: Ask
    group: int = 2
    keep: int = 3
    every_step: bool = False
    """Commit after every step."""


@dataclass
class Live:
    """A job that waits at event ``at``, and the client that follows it, if there is one.

    ``failed_at`` is the step whose commit on the way failed last, ``in_doubt`` says that its manifest was stored.
    """

    run: Run
    at: str
    client: Client | None = None
    failed_at: int | None = None
    in_doubt: bool = False

    @property
    def locked(self) -> bool:
        """Whether it holds the bucket's lock."""
        return self.at.startswith(("files_stored", "manifest_stored"))

    @property
    def followed(self) -> bool:
        return self.client is not None and not self.client.killed


@dataclass
class Project:
    """``open`` are runs that ended, or may have, without anybody having looked; ``runs`` are all."""

    path: Path
    runs: dict[str, Run] = field(default_factory=dict)
    open: list[Run] = field(default_factory=list)
    live: Live | None = None
    ended: set[str] = field(default_factory=set)

    def folder(self, run: Run) -> Path:
        return self.path / "runs" / run.name

    def record(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "runs" / name / "run.json").read_text())
        return found

    def unknown(self) -> list[str]:
        """Runs that this history has not met."""
        runs = self.path / "runs"
        folders = runs.iterdir() if runs.exists() else []
        return sorted(f.name for f in folders if f.name not in self.runs and (f / "run.json").exists())

    def result(self, run: Run) -> dict[str, Any] | None:
        path = self.folder(run) / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    def saved(self, run: Run) -> int | None:
        """The step of the checkpoint that the job saved whole here."""
        for folder in sorted(self.folder(run).glob("out/*"), reverse=True):
            path = folder / "manifest.json"
            if path.exists() and all(_fits(folder, entry) for entry in json.loads(path.read_text())["files"]):
                return int(folder.name[:8])
        return None


def _fits(folder: Path, entry: dict[str, Any]) -> bool:
    path = folder / entry["path"]
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]


class Teller:
    """A call's notices, in a file that other processes can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def event(self, event: object) -> None:
        pass

    def notice(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")


def points(run: Run) -> list[str]:
    """The events of a run's job at which it can be held, in order."""
    found = list(BEFORE_STEPS)
    for step in range(run.from_step + 1, run.last + 1):
        found.append(f"step:{step}")
        if run.every_step or step == run.last:
            found += [f"saving:{step}", f"files_stored:{step}", f"manifest_stored:{step}"]
    return found


def kept_at(run: Run, point: str) -> int | None:
    """The step that a job killed at ``point`` leaves, here or in the bucket."""
    phase, _, number = point.partition(":")
    if not number:
        return None
    step = int(number) if phase in ("files_stored", "manifest_stored") else int(number) - 1
    return step if step > run.from_step and (run.every_step or step == run.last) else None


def stopped_at(run: Run, point: str) -> int | None:
    """The last step of a job that is asked to stop at ``point``; None when it makes none."""
    phase, _, number = point.partition(":")
    if not number:
        return None
    return int(number) if phase == "step" else min(int(number) + 1, run.last)


def cancelled_at(run: Run, point: str) -> int | None:
    """The last step that is committed by a job that is cancelled at ``point``."""
    phase, _, number = point.partition(":")
    if phase in ("saving", "files_stored", "manifest_stored"):
        return int(number)
    return kept_at(run, point)
