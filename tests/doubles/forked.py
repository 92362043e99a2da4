"""Real processes without the price of starting Python: jobs and clients as forks of the test's own process.

A job runs the trainer's real order with the stand-in as its engine, in a session of its own; SIGKILL ends it as it ends
any other. What happens to it is said by the lines of the file ``hold`` in the project's folder, read at every event:
``pause X`` waits at event X until the line is gone or a stop or cancel is asked for, ``kill X`` is SIGKILL there.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, BinaryIO, NoReturn

import pytest
from tests.doubles.standin import StandIn

from stepctl.base.errors import StepctlError
from stepctl.jobs.directory import JobDir
from stepctl.jobs.events import AnyEvent, EventWriter, Progress, Status
from stepctl.trainer.run import run_job

BOUND_SEC = 30.0
TICK_SEC = 0.003
_WRITES = ("replace", "link", "unlink", "mkdir", "rmdir")


class Deaths:
    """Counts the acts of this process that change a folder; SIGKILL comes before number ``left`` (from 0)."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.of_jobs: int | None = None
        """For the jobs that this process starts."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in _WRITES:
            patch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return act


DEATHS = Deaths()


def install(patch: pytest.MonkeyPatch) -> None:
    """From now on local jobs are forks.

    Nothing is fsynced, since no power is cut, and a model's tokenizer is loaded once for all processes.
    """
    from stepctl.calls import prepare
    from stepctl.targets import local
    from stepctl.trainer import job

    cached = functools.cache(prepare.load_tokenizer)
    patch.setattr(prepare, "load_tokenizer", cached)
    patch.setattr(job, "load_tokenizer", cached)
    fake = SimpleNamespace(Popen=ForkedJob, PIPE=-1)
    patch.setattr(local, "subprocess", fake)
    patch.setattr(os, "fsync", lambda fd: None)
    patch.setenv("TOKENIZERS_PARALLELISM", "false")
    DEATHS.install(patch)
    # A child that touches no object of its parent's costs no copied page.
    gc.collect()
    gc.freeze()


def hold(project: Path, what: str = "") -> None:
    """Say what the project's jobs do from now on."""
    new = project / "hold.new"
    new.write_text(what)
    new.rename(project / "hold")


def _name(event: AnyEvent, step: int) -> str:
    if isinstance(event, Progress):
        return f"step:{event.step}"
    if isinstance(event, Status):
        return f"{event.phase}:{step}" if event.phase in ("saving", "files_stored", "manifest_stored") else event.phase
    return ""


def _obedient(job_dir: JobDir) -> Callable[[AnyEvent], None]:
    write, project, step = EventWriter(job_dir.events), job_dir.path.parent.parent, 0

    def held() -> list[str]:
        return (project / "hold").read_text().splitlines()

    def emit(event: AnyEvent) -> None:
        nonlocal step
        write(event)
        step = event.step if isinstance(event, Progress) else step
        name = _name(event, step)
        if not name:
            return
        if f"kill {name}" in held():
            os.kill(os.getpid(), signal.SIGKILL)
        pause = f"pause {name}"
        if pause in held():
            (job_dir.path / "held").write_text(name)
            deadline = time.monotonic() + BOUND_SEC
            while pause in held() and job_dir.requested() is None:
                if time.monotonic() > deadline:
                    os._exit(99)
                time.sleep(TICK_SEC)
            (job_dir.path / "held").write_text("")

    return emit


class ForkedJob:
    """As much of ``subprocess.Popen`` as a local machine asks for."""

    def __init__(
        self,
        command: list[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: IO[bytes],
        cwd: Path,
        env: dict[str, str],
        start_new_session: bool,
    ) -> None:
        assert command[1:3] == ["-m", "stepctl.trainer"]
        assert start_new_session
        reading, writing = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _guarded(lambda: self._child(command[3], reading, writing, stdout.fileno(), cwd))
        os.close(reading)
        self.stdin = os.fdopen(writing, "wb")

    def _child(self, job: str, reading: int, writing: int, log: int, cwd: Path) -> int:
        os.setsid()
        os.close(writing)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(cwd)
        sys.stdout = sys.stderr = os.fdopen(1, "w")
        DEATHS.left, job_dir = DEATHS.of_jobs, JobDir(Path(job))
        stream: BinaryIO = os.fdopen(reading, "rb")
        code = run_job(job_dir, stream, lambda: StandIn({}), _obedient(job_dir))
        sys.stdout.flush()
        return code

    def poll(self) -> int | None:
        if self.returncode is None:
            self._reap(os.WNOHANG)
        return self.returncode

    def wait(self) -> int | None:
        if self.returncode is None:
            self._reap(0)
        return self.returncode

    def _reap(self, how: int) -> None:
        pid, status = os.waitpid(self.pid, how)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def _guarded(work: Callable[[], int]) -> NoReturn:
    """The life of a forked child: never back into the test."""
    code = 98
    gc.disable()
    try:
        code = work()
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


class Refusal(Exception):
    """A call's error as it comes over from another process."""

    def __init__(self, code: str, exit_code: int, text: str) -> None:
        super().__init__(code, exit_code, text)
        self.code, self.exit_code = code, exit_code


def outcome(work: Callable[[], Any]) -> Any:
    """What a call returns, or how it refuses."""
    try:
        return work()
    except StepctlError as error:
        return Refusal(error.code, int(error.exit_code), error.message)


class Client:
    """A call in a process of its own. ``wait`` returns what it came to, None when it was killed."""

    def __init__(
        self, work: Callable[[], Any], answer: Path, *, die: int | None = None, job: int | None = None
    ) -> None:
        self._answer, self.killed = answer, False
        # Every process that this one starts holds the pipe too: its end is the end of them all.
        self._life, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _guarded(lambda: self._child(work, die, job))
        os.close(writing)

    def _child(self, work: Callable[[], Any], die: int | None, job: int | None) -> int:
        DEATHS.left, DEATHS.of_jobs = die, job
        try:
            found = outcome(work)
        except BaseException:
            found = traceback.format_exc()
        DEATHS.left = None
        self._answer.write_bytes(pickle.dumps(found))
        return 0

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True

    def wait(self) -> Any:
        """Wait for the client alone."""
        _, status = os.waitpid(self.pid, 0)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            return None
        found = pickle.loads(self._answer.read_bytes())
        assert not isinstance(found, str), found
        return found

    def all_ended(self) -> None:
        """Wait until no process is left of those it started."""
        while os.read(self._life, 1):
            pass
        os.close(self._life)


def until(probe: Callable[[], Any], what: str = "") -> Any:
    """Wait for another process's doing; bounded."""
    deadline = time.monotonic() + BOUND_SEC
    while not (found := probe()):
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(TICK_SEC)
    return found
