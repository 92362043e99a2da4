"""A pod for the watchdog: the real script under a real shell, and a clock that the test sets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.targets.runpod.scripts.stub_api import KEY, POD, StubApi

import stepctl.targets.runpod
from stepctl.runs.process import identify

SCRIPTS = Path(stepctl.targets.runpod.__file__).parent
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
TOOLS = ("sleep", "mv", "mkdir", "chmod", "wc", "date", "rm")
"""Every program that the watchdog needs, but for those that speak HTTP."""
BOUND_SEC = 20.0
BOOTED = 5000
"""Seconds that the host had been up when the container started first."""
LIMITS = {
    "MAX_SECONDS": 7200,
    "BOOT_GRACE": 1800,
    "LEASE": 900,
    "STALL": 1200,
    "GRACE": 600,
    "SAVE_AHEAD": 300,
}


def program(name: str) -> Path:
    """Where it is on this machine. Without it the test is skipped, but fails where CI=true."""
    found = sys.executable if name.startswith("python") else shutil.which(name)
    if found is None:
        text = f"{name} is not installed: make system"
        pytest.fail(text) if os.environ.get("CI") == "true" else pytest.skip(text)
    return Path(found).resolve()


def until(probe: Callable[[], Any], what: str) -> Any:
    """Wait for another process's doing; bounded."""
    deadline = time.monotonic() + BOUND_SEC
    while not (found := probe()):
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(0.003)
    return found


def make_path(folder: Path, shell: str, names: Sequence[str]) -> Path:
    """A folder of links to these programs, and ``sh``; with busybox it has its own, as on Alpine."""
    folder.mkdir()
    first = program(SHELLS[shell][0])
    (folder / "sh").symlink_to(first)
    for name in names:
        small = shell == "busybox" and (name in TOOLS or name == "wget")
        (folder / name).symlink_to(first if small else program(name))
    return folder


class Trainer:
    """A job's directory with a process that stands for its trainer."""

    def __init__(self, path: Path, *, started: str | None = None) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        found = identify(self.process.pid)
        assert found is not None
        boot, _, ticks = found.started.partition(":")
        began = started.format(boot=boot, ticks=ticks) if started else found.started
        self.write("process.json", {"pid": found.pid, "started": began, "attempt": "a"})
        self.event()

    def write(self, name: str, what: object) -> None:
        new = self.path / f"{name}.new"
        new.write_text(what if isinstance(what, str) else json.dumps(what))
        new.rename(self.path / name)

    def event(self) -> None:
        with (self.path / "events.jsonl").open("a") as events:
            events.write('{"type":"progress"}\n')

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ends(self, state: str = "done", bucket: str = "/workspace/bucket") -> None:
        """The last writes of a trainer."""
        self.write("job.json", json.dumps({"version": 1, "bucket": bucket}, indent=2))
        self.write("result.json", json.dumps({"version": 1, "state": state}, indent=2))
        self.write("exit_code", "0\n")
        self.kill()

    def control(self, name: str) -> str | None:
        """What a file in ``control`` holds."""
        found = self.path / "control" / name
        return found.read_text() if found.exists() else None


class GuardedPod:
    """The watchdog as a process; seconds are counted from the container's first start."""

    def __init__(self, folder: Path, shell: str, api: StubApi) -> None:
        self.folder, self.shell, self.api = folder, shell, api
        self.dir, self.uptime, self.log = folder / "dir", folder / "uptime", folder / "container.log"
        self.dir.mkdir()
        self.env: dict[str, str] = {f"STEPCTL_{name}": str(value) for name, value in LIMITS.items()}
        self.env |= {
            "STEPCTL_TICK": "0.01",
            "STEPCTL_API": api.url,
            "STEPCTL_DIR": str(self.dir),
            "STEPCTL_SHM": str(folder),
            "STEPCTL_UPTIME": str(self.uptime),
            "STEPCTL_CALL": "1",
            "RUNPOD_POD_ID": POD,
            "RUNPOD_API_KEY": KEY,
        }
        self.means: Sequence[str] = ("curl",)
        self.programs: dict[str, str] = {}
        """Scripts on the path, in place of programs."""
        self.unread = False
        """Whether standard output is a pipe whose reader is gone."""
        self.starts = 0
        self.guard: subprocess.Popen[bytes] | None = None
        self.trainers: list[Trainer] = []
        self.set_clock(0)
        api.watched = lambda: self.guard.pid if self.guard else None

    def start(self, *, wait: bool = True) -> GuardedPod:
        """What a start of the container does, as far as the watchdog sees it; it has looked when this returns."""
        path = self.folder / "bin"
        if not path.exists():
            make_path(path, self.shell, [*TOOLS, *self.means])
            for name, text in self.programs.items():
                (path / name).unlink(missing_ok=True)
                (path / name).write_text(text)
                (path / name).chmod(0o755)
        self.starts += 1
        (self.dir / "starts").write_text(f"{self.starts}\n")
        if self.starts == 1:
            (self.dir / "first").write_text(f"{BOOTED}\n")
        command = [str(program(SHELLS[self.shell][0])), *SHELLS[self.shell][1:], str(SCRIPTS / "watchdog.sh")]
        with self._stdout() as log:
            self.guard = subprocess.Popen(
                command,
                env={**self.env, "PATH": str(path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.looks(1) if wait else self

    def _stdout(self) -> BinaryIO:
        if not self.unread:
            return self.log.open("ab")
        reading, writing = os.pipe()
        os.close(reading)
        return os.fdopen(writing, "wb")

    def kill(self) -> None:
        """The container is gone, with all its processes."""
        if self.guard is not None:
            os.killpg(self.guard.pid, signal.SIGKILL)
            self.guard.wait()
            self.guard = None

    def close(self) -> None:
        self.kill()
        for trainer in self.trainers:
            trainer.kill()

    def set_clock(self, seconds: float) -> None:
        """The host's uptime and the provider's clock go on; nobody waits for the watchdog."""
        new = self.folder / "uptime.new"
        new.write_text(f"{BOOTED + seconds:.2f} 12345.67\n")
        new.rename(self.uptime)
        self.api.elapsed = seconds

    def at(self, seconds: float) -> GuardedPod:
        """Move the clock, and wait until the watchdog has looked, or ends the pod."""
        self.set_clock(seconds)
        return self.looks()

    def looks(self, times: int = 2) -> GuardedPod:
        """Two looks that agree are what it takes; the one that is under way may have begun before the change."""
        before = self.state("LOOKS")
        until(lambda: self.state("LOOKS") > before + times or self.ending, "a look")
        return self

    def state(self, name: str) -> int:
        """A number that the watchdog keeps over restarts; 0 when there is none."""
        text = self.state_text(name)
        return int(text) if text.isdigit() else 0

    def state_text(self, name: str) -> str:
        """A text of the same kind."""
        return ("\n" + self.text_of("state")).partition(f"\n{name}=")[2].partition("\n")[0]

    def text_of(self, name: str) -> str:
        try:
            return (self.dir / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def put(self, name: str, text: str) -> None:
        """Write a file of the pod's directory by rename."""
        new = self.dir / f"{name}.test"
        new.write_text(text)
        new.rename(self.dir / name)

    @property
    def ending(self) -> str:
        return self.text_of("ending").strip()

    @property
    def said(self) -> str:
        return self.log.read_text()

    def train(self, name: str = "job", *, started: str | None = None) -> Trainer:
        """A job starts, and the watchdog has seen it. ``started`` is what is noted of its start."""
        trainer = Trainer(self.folder / name, started=started)
        self.trainers.append(trainer)
        self.put("job", str(trainer.path))
        if self.guard is not None:
            self.looks()
        return trainer

    def holds(self) -> GuardedPod:
        """It does not end the pod."""
        self.looks()
        assert not self.ending, self.said
        assert not self.api.endings
        return self

    def ends(self, why: str) -> GuardedPod:
        """It does, for this reason."""
        until(lambda: self.ending, f"ending: {self.said}")
        assert self.ending == why, self.said
        until(lambda: f"stepctl-watchdog: ends this pod: {why} (" in self.said, "a word about it")
        return self

    def terminated(self) -> None:
        """The provider was asked to end it."""
        until(lambda: self.api.endings, "a request")
        assert self.api.endings[0] == "terminate"
