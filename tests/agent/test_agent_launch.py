"""Starting a trainer: its process, its environment, and examples that arrive whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import ROOT, until

from stepctl.agent.launch import environment
from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import Launch, Launched, Started, line

SECRET = "a-secret-that-nobody-thought-of"


@pytest.fixture
def trainer(tmp_path: Path) -> str:
    """A trainer that writes down what it was given."""
    path = tmp_path / "trainer"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        "job = sys.argv[3]\n"
        "facts = {'argv': sys.argv[1:], 'env': dict(os.environ), 'cwd': os.getcwd(), 'sid': os.getsid(0)}\n"
        "facts['umask'] = os.umask(0)\n"
        "open(job + '/facts', 'w').write(json.dumps(facts))\n"
        "if os.path.exists(job + '/../die'): sys.exit(3)\n"
        "print('a word')\n"
        "data = sys.stdin.buffer.read()\n"
        "open(job + '/got', 'wb').write(data)\n"
    )
    path.chmod(0o755)
    return str(path)


class Launcher:
    """The agent's ``launch`` as a client has it."""

    def __init__(self, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepctl.agent", "launch"],
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def begin(self, launch: Launch) -> Launched:
        self.stdin.write(line(launch))
        self.stdin.flush()
        return self.told()

    def told(self) -> Launched:
        return msgspec.json.decode(self.stdout.readline(), type=Launched)


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return JobDir(tmp_path / "work/runs/r1")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.process.kill()
    made.process.wait()
    made.stdout.close()


def spec(**more: Any) -> str:
    return json.dumps({"run": "r1", "attempt": "a1", **more})


def test_what_is_sent_reaches_the_trainer_and_nothing_else(job: JobDir, trainer: str, launcher: Launcher) -> None:
    told = launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer, env={"MORE": "1"}))
    note = msgspec.json.decode(job.process.read_bytes(), type=Started)
    assert (note.pid, note.started, note.attempt) == (told.pid, told.started, "a1")
    assert note.host == os.uname().nodename
    assert note.view.startswith(told.started.rpartition(":")[0])
    assert job.job.read_text() == spec()
    data = b"\x00\n" + os.urandom(3_000_000)
    launcher.stdin.write(data)
    launcher.stdin.close()
    assert launcher.told().sent == len(data)
    got = job.path / "got"
    until(lambda: got.exists() and got.stat().st_size == len(data))
    assert got.read_bytes() == data
    facts = json.loads((job.path / "facts").read_text())
    assert facts["argv"] == ["-m", "stepctl.trainer", str(job.path)]
    assert facts["cwd"] == str(job.path)
    assert facts["sid"] == told.pid
    assert facts["env"]["MORE"] == "1"
    assert facts["umask"] == os.umask(os.umask(0o022))
    assert job.log.read_text() == "a word\n"
    assert job.path.stat().st_mode & 0o77 == 0


def test_the_trainer_inherits_what_it_needs_only(job: JobDir, trainer: str) -> None:
    secrets = dict.fromkeys(("RUNPOD_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"), SECRET)
    launcher = Launcher(CUDA_VISIBLE_DEVICES="1", HF_HOME="/cache", **secrets)
    launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer))
    launcher.stdin.close()
    launcher.process.wait(30)
    until(lambda: (job.path / "got").exists())
    env = json.loads((job.path / "facts").read_text())["env"]
    assert (env["CUDA_VISIBLE_DEVICES"], env["HF_HOME"]) == ("1", "/cache")
    assert SECRET not in str(env)


def test_on_a_pod_it_has_what_the_container_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepctl.agent import launch

    environ = tmp_path / "environ"
    environ.write_bytes(
        f"HF_HOME=/volume\0CUDA_VISIBLE_DEVICES=0\0RUNPOD_API_KEY={SECRET}\0PATH=/image\0\0bad\0".encode()
    )
    monkeypatch.setattr(launch, "_INIT_ENVIRONMENT", environ)
    monkeypatch.setenv("PATH", "/login")
    monkeypatch.delenv("HF_HOME", raising=False)
    plain = environment(Launch(job="", spec=""))
    assert "HF_HOME" not in plain
    pod = environment(Launch(job="", spec="", mark="/x", env={"CUDA_VISIBLE_DEVICES": "7"}))
    assert (pod["HF_HOME"], pod["PATH"], pod["CUDA_VISIBLE_DEVICES"]) == ("/volume", "/login", "7")
    assert SECRET not in str(pod)
    monkeypatch.setattr(launch, "_INIT_ENVIRONMENT", tmp_path / "none")
    assert environment(Launch(job="", spec="", mark="/x"))["PATH"] == "/login"


def test_a_mark_names_the_job(job: JobDir, trainer: str, launcher: Launcher, tmp_path: Path) -> None:
    mark = tmp_path / "state/job"
    launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer, mark=str(mark)))
    assert mark.read_bytes() == os.fsencode(job.path)
    # A pod that starts anew may have another name, and is the same one.
    assert "host" not in json.loads(job.process.read_bytes())


def test_a_job_runs_once_at_a_time(job: JobDir, trainer: str, launcher: Launcher) -> None:
    first = launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer))
    assert Launcher().begin(Launch(job=str(job.path), spec=spec(attempt="a2"), python=trainer)).code == "running"
    launcher.stdin.close()
    launcher.process.wait(30)
    until(lambda: (job.path / "got").exists())
    again = Launcher()
    until(lambda: not Path(f"/proc/{first.pid}").exists())
    assert again.begin(Launch(job=str(job.path), spec=spec(attempt="a3"), python=trainer)).error == ""
    assert json.loads(job.job.read_text())["attempt"] == "a3"
    again.process.kill()


def test_a_trainer_that_outlived_its_launcher_is_not_started_again(job: JobDir, tmp_path: Path) -> None:
    lasting = tmp_path / "lasting"
    lasting.write_text("#!/bin/sh\ncat > /dev/null; sleep 60\n")
    lasting.chmod(0o755)
    one = Launcher()
    told = one.begin(Launch(job=str(job.path), spec=spec(), python=str(lasting)))
    one.process.kill()
    assert Launcher().begin(Launch(job=str(job.path), spec=spec(), python=str(lasting))).code == "running"
    os.killpg(told.pid, signal.SIGKILL)


def test_a_job_that_may_run_on_another_machine_is_not_started_again(
    job: JobDir, trainer: str, launcher: Launcher
) -> None:
    job.path.mkdir(parents=True)
    note = msgspec.json.encode(Started(pid=1, started="boot-of-a:7", attempt="a1", host="node-a"))
    job.process.write_bytes(note)
    told = launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer))
    assert told.error == f"the job was started on node-a, and this is {os.uname().nodename}"
    assert job.process.read_bytes() == note
    assert not job.job.exists()


def test_a_start_clears_what_an_earlier_one_left(job: JobDir, trainer: str, launcher: Launcher) -> None:
    job.path.mkdir(parents=True)
    job.control.mkdir()
    leftovers = [job.exit_code, job.result, job.events, job.log, job.reason, job.path / "taken", job.control / "stop"]
    for path in leftovers:
        path.write_text("old")
    (job.path / "agent").write_text("kept")
    launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer))
    assert [path for path in leftovers if path.exists() and path.read_text() == "old"] == []
    assert (job.path / "agent").read_text() == "kept"


def test_a_trainer_that_cannot_be_started(job: JobDir, launcher: Launcher, tmp_path: Path) -> None:
    told = launcher.begin(Launch(job=str(job.path), spec=spec(), python=str(tmp_path / "none")))
    assert told.code == "no_trainer"
    assert "none" in told.error
    assert not job.process.exists()


def test_a_trainer_that_ends_before_it_reads(job: JobDir, trainer: str, launcher: Launcher, tmp_path: Path) -> None:
    job.path.parent.mkdir(parents=True)
    (job.path.parent / "die").touch()
    launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer))
    try:
        launcher.stdin.write(b"x" * 5_000_000)
        launcher.stdin.close()
    except BrokenPipeError:
        pass
    told = launcher.told()
    assert told.exit == 3
    assert told.sent < 5_000_000


def test_a_client_that_says_nothing_is_not_waited_for(job: JobDir, trainer: str, launcher: Launcher) -> None:
    began = time.monotonic()
    launcher.begin(Launch(job=str(job.path), spec=spec(), python=trainer, idle_sec=0.3))
    launcher.stdin.write(b"half")
    launcher.stdin.flush()
    assert launcher.told().error == "no examples came"
    assert time.monotonic() - began < 20
    until(lambda: (job.path / "got").exists())
    assert launcher.process.wait(10) == 1


def test_nonsense_starts_nothing(launcher: Launcher) -> None:
    launcher.stdin.write(b"nonsense\n")
    launcher.stdin.close()
    assert launcher.told().error
    assert launcher.process.wait(10) == 1
