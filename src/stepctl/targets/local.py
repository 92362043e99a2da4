"""This machine: the job is a process group of its own that outlives the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.files import write_atomic
from stepctl.jobs.directory import JobDir, Payload, write_payload
from stepctl.jobs.spec import JobSpec
from stepctl.runs.environment import clean_environment
from stepctl.runs.process import alive, identify
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Freight


class LocalMachine:
    """A job on this machine; its directory is the run's own folder."""

    def __init__(self, job: JobDir, python: str | None, process: ProcessId | None) -> None:
        self._job, self._python, self._process = job, python or sys.executable, process
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def staged(self) -> bool:
        return False

    def prepare(self, freight: Freight) -> None:
        """Nothing to get: the job finds everything where it lies."""

    def find(self) -> ProcessId | None:
        return self._process

    def start(self, spec: JobSpec) -> ProcessId:
        write_atomic(self._job.job, msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n", mode=0o600)
        with self._job.log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    [self._python, "-m", "stepctl.trainer", str(self._job.path)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._job.path,
                    env=clean_environment(dict(os.environ)),
                    start_new_session=True,
                )
            except OSError as error:
                raise StepctlError(
                    f"the trainer cannot be started with {self._python}: {error.strerror}",
                    safe="nothing was trained",
                    next="stepctl doctor",
                    code="no_trainer",
                ) from error
        self._child = child
        self._process = identify(child.pid) or ProcessId(pid=child.pid, started="ended at once")
        return self._process

    def send(self, payload: Payload) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            with self._child.stdin as stream:
                write_payload(stream, payload)  # type: ignore[arg-type]
        except BrokenPipeError as error:
            self._child.wait()
            raise StepctlError(
                f"the trainer ended before it took the examples{self._last_words()}",
                safe="nothing was trained",
                next=f"stepctl doctor; the whole log is in {self._job.log}",
                code="no_trainer",
            ) from error

    def _last_words(self) -> str:
        lines = self._job.log.read_text(errors="replace").strip().splitlines() if self._job.log.exists() else []
        return f": {lines[-1]}" if lines else ""

    def sync(self) -> None:
        """Nothing to bring: the job writes into the run's folder itself."""

    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return alive(self._process)

    @property
    def lost(self) -> bool:
        return False

    def death(self) -> str:
        code = self._child.poll() if self._child is not None else None
        if code is None:
            return ""
        if code >= 0:
            return f"it ended with code {code}"
        name = signal.Signals(-code).name
        return f"it was killed ({name})" + ("; often that is the system running out of memory" if code == -9 else "")

    def request(self, what: str) -> None:
        self._job.request(what)

    def signal(self, name: str) -> None:
        if self.alive() and self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.killpg(self._process.pid, signal.Signals[f"SIG{name}"])

    def retrieve(self, lineage: str, known: Sequence[str]) -> list[Path]:
        return []

    def release(self, *, keep: bool = False) -> None:
        """Nothing was taken."""

    def close(self) -> None:
        """There is no connection."""


def run_helper(module: str, request: bytes, python: str | None, timeout: float | None = None) -> bytes:
    """Ask a trainer process a question (``doctor``, ``try``): a JSON line in, a JSON line out.

    Raises:
        StepctlError: it cannot be started, or ended without an answer.
    """
    try:
        done = subprocess.run(
            [python or sys.executable, "-m", f"stepctl.trainer.{module}"],
            input=request,
            capture_output=True,
            env=clean_environment(dict(os.environ)),
            cwd=Path.home() if Path.home().is_dir() else Path("/"),
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepctlError(f"the trainer's Python gave no answer: {error}", next="stepctl doctor") from error
    if not done.stdout.strip():
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise StepctlError(
            f"the trainer's Python gave no answer: {words[-1] if words else f'it ended with code {done.returncode}'}",
            next="install stepctl with its training packages: pip install 'stepctl[train]'",
            code="no_trainer",
        )
    return done.stdout.strip().splitlines()[-1]
