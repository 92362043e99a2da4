"""A project that trains in pods of the emulated Runpod, which are real machines; the stand-in trains there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.doubles.project import ROOT, Project, until
from tests.doubles.runpod import Sandbox


class Stage:
    """A folder that pods see: a virtual environment whose trainer is the stand-in, and the stand-in's faults."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults, self.venv = folder, folder / "faults", folder / "venv"
        self.faults.mkdir(parents=True)
        python = self.venv / "bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(
            f'#!/bin/sh\nwhile [ -e "{self.faults}/hold" ]; do sleep 0.05; done\ncase "$*" in\n'
            f'"-m stepctl.trainer "*) export STANDIN_FOLDER="{self.faults}"\n'
            f'  exec "{sys.executable}" "{ROOT}/tests/doubles/standin.py" "$@" ;;\n'
            f'*) exec "{sys.executable}" "$@" ;;\nesac\n'
        )
        python.chmod(0o755)

    @property
    def shown(self) -> tuple[Path, ...]:
        """What a sandbox must let pods see."""
        return (self.folder, ROOT / "tests", ROOT / "src")

    def hold(self) -> None:
        """Let every Python of pods wait until ``clear``."""
        (self.faults / "hold").touch()

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        for path in self.faults.iterdir():
            path.unlink()


class Cloud:
    """The emulated Runpod of a session of tests, and the stage that its pods see."""

    def __init__(self, sandbox: Sandbox, stage: Stage) -> None:
        self.sandbox, self.stage = sandbox, stage

    def reset(self) -> None:
        self.sandbox.reset()
        self.stage.clear()


class Rented(Project):
    """A project whose target ``cloud`` rents pods. ``options`` are the target's; all is quick."""

    def __init__(
        self, folder: Path, cloud: Cloud, *, model: Path | None = None, toml: str = "", **options: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.cloud, self.sandbox, self.stage = cloud, cloud.sandbox, cloud.stage
        self.options = {
            "kind": "runpod",
            "api_url": self.sandbox.url,
            "max_hours": 1,
            "poll_seconds": 0.05,
            "watchdog_seconds": 1,
            "device": "cpu",
            "venv": str(self.stage.venv),
            **options,
        }
        super().__init__(folder, model=model, toml=f'target = "cloud"\n{toml}')
        self._local = (folder / "stepctl.toml").read_text()
        self.set()
        self.env["RUNPOD_API_KEY"] = self.sandbox.key

    def set(self, **options: Any) -> None:
        """Change the target's settings; None takes one out."""
        self.options = {name: value for name, value in {**self.options, **options}.items() if value is not None}
        table = "".join(f"{name} = {_toml(value)}\n" for name, value in self.options.items())
        (self.path / "stepctl.toml").write_text(f"{self._local}[targets.cloud]\n{table}")

    def faults(self, **faults: Any) -> None:
        """What goes wrong in the jobs of pods from now on."""
        (self.stage.faults / "go").unlink(missing_ok=True)
        (self.stage.faults / "faults.json").write_text(json.dumps(faults))

    def go(self) -> None:
        (self.stage.faults / "go").touch()

    def record(self, run: Path | None = None) -> dict[str, Any]:
        """A run's record; the newest one's without ``run``."""
        found: dict[str, Any] = json.loads(((run or self.runs()[-1]) / "run.json").read_text())
        return found

    def attempts(self, run: Path | None = None) -> list[dict[str, Any]]:
        """What a run's pod.json says of its pods."""
        path = (run or self.runs()[-1]) / "pod.json"
        found: list[dict[str, Any]] = json.loads(path.read_text())["attempts"] if path.exists() else []
        return found

    def wait_attempt(self, state: str, runs: int = 1) -> dict[str, Any]:
        """Wait until the newest attempt of the newest of so many runs is in a state."""

        def there() -> dict[str, Any] | None:
            found = self.attempts() if len(self.runs()) >= runs else []
            return found[-1] if found and found[-1]["state"] == state else None

        attempt: dict[str, Any] = until(there)
        return attempt

    def verb(self, *args: object, code: int = 0) -> dict[str, Any]:
        """A command with ``--json`` and the exit code that is expected; the object it prints."""
        done = self.run(*args, "--json")
        assert done.returncode == code, (args, done.returncode, done.stderr, done.stdout)
        assert "Traceback" not in done.stderr and "this is a bug" not in done.stderr, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def attach(self, *args: object, code: int = 0) -> dict[str, Any]:
        return self.verb("train", "attach", "last", *args, code=code)

    def endings(self) -> list[str]:
        """Who ended the pods that are gone, by the sandbox's journal: ``client``, ``pod`` (itself), ``provider``."""
        gone = self.sandbox.gone()
        return [{"account": "client", pod["id"]: "pod"}.get(pod["endedBy"], pod["endedBy"]) for pod in gone]

    def clean(self, *endings: str) -> None:
        """No pod, secret or key is left, and the pods ended as expected; the lineage is whole."""
        told = self.sandbox.told()
        assert self.sandbox.pods() == [], told
        assert self.endings() == list(endings), told
        assert self.sandbox.secrets() == {}, told
        left = [str(p) for name in ("client_key", "known_hosts") for p in (self.path / "runs").glob(f"*/{name}")]
        assert left == []
        closed = ("gone", "refused", "handed")
        assert not [each for run in self.runs() for each in self.attempts(run) if each["state"] not in closed]
        if (self.path / "checkpoints").exists():
            self.verify()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Wait for a command line to end with that exit code; what it printed on stdout and stderr."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (process.returncode, out, err)
    assert "Traceback" not in err and "this is a bug" not in err, err
    return out, err
