"""Starting a trainer, and handing it what the client sends: secrets and examples pass through, and touch no disk."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepctl.agent.pipes import Input, Silence, writer
from stepctl.base.files import make_dirs, write_atomic
from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import Launch, Launched, Started, attempt_of, line
from stepctl.runs.environment import clean_environment
from stepctl.runs.process import alive, identify
from stepctl.runs.record import ProcessId

_BLOCK = 1 << 20
_END_SEC = 5.0
_INIT_ENVIRONMENT = Path("/proc/1/environ")
_NAMESPACE = Path("/proc/self/ns/pid")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Refused(Exception):
    """The trainer is not started; ``code`` is a word for programs."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def launch(umask: int = 0o077) -> int:
    """Read what to start, start it with ``umask``, tell its process, and copy the rest of stdin into it.

    The trainer is in a session of its own: it outlives this process, which only it knows the examples from.
    """
    stdin, say = Input(idle_sec=120.0), writer()
    try:
        told = msgspec.json.decode(stdin.line(), type=Launch)
        stdin.idle_sec = told.idle_sec
        job = JobDir(Path(told.job))
        make_dirs(job.path)
        with _alone(job):
            child = _start(job, told, umask)
            say(line(Launched(pid=child.pid, started=_note(job, told, child))))
            sent = _feed(child, stdin)
            say(line(Launched(sent=sent, exit=child.poll())))
    except (Refused, OSError, msgspec.MsgspecError, Silence) as error:
        code = error.code if isinstance(error, Refused) else "no_trainer"
        with contextlib.suppress(OSError):
            say(line(Launched(error=str(error) or "no examples came", code=code)))
        return 1
    return 0


@contextlib.contextmanager
def _alone(job: JobDir) -> Iterator[None]:
    """One launch at a time; the trainer does not inherit the lock."""
    fd = os.open(job.path / ".launch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused("running", "another call is starting this job") from None
    finally:
        os.close(fd)


def started(job: JobDir) -> Started | None:
    """The process of the job's last start, as noted; None when none was started."""
    try:
        return msgspec.json.decode(job.process.read_bytes(), type=Started)
    except (OSError, msgspec.MsgspecError):
        return None


def living(job: JobDir) -> bool:
    """Whether the job's trainer runs.

    Raises:
        OSError: it was started on another machine, and only that one could tell.
    """
    last = started(job)
    if last is None:
        return False
    if alive(ProcessId(pid=last.pid, started=last.started)):
        return True
    if words := elsewhere(job):
        raise OSError(words)
    return False


def elsewhere(job: JobDir) -> str:
    """Which other machine a job was started on that may still run; empty when it can be judged here."""
    last, here = started(job), os.uname().nodename
    if last is None or last.host in ("", here) or job.exit_code.exists():
        return ""
    if last.view and last.view == _view():
        return ""  # the machine has another name now
    return f"the job was started on {last.host}, and this is {here}"


def _view() -> str:
    """What process numbers mean here; empty where that is not to be had."""
    try:
        return f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return ""


def _start(job: JobDir, told: Launch, umask: int) -> subprocess.Popen[bytes]:
    if living(job):
        raise Refused("running", "this job is running already")
    job.process.unlink(missing_ok=True)
    job.clear()
    for leftover in (job.log, job.reason, job.path / "taken"):
        leftover.unlink(missing_ok=True)
    write_atomic(job.job, told.spec.encode(), mode=0o600)
    with job.log.open("ab") as log:
        return subprocess.Popen(
            [told.python or sys.executable, "-m", "stepctl.trainer", str(job.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=job.path,
            env=environment(told),
            start_new_session=True,
            umask=umask,
        )


def environment(told: Launch) -> dict[str, str]:
    """The trainer's environment: names that it needs, of this login and of the container, then what the client adds."""
    env = dict(os.environ)
    if told.mark:
        # A login over SSH does not have what the container was given.
        with contextlib.suppress(OSError):
            pairs = (os.fsdecode(part).partition("=") for part in _INIT_ENVIRONMENT.read_bytes().split(b"\0"))
            env = {**{name: value for name, _, value in pairs if name}, **env}
    return {**clean_environment(env), **told.env}


def _note(job: JobDir, told: Launch, child: subprocess.Popen[bytes]) -> str:
    found = identify(child.pid)
    began = found.started if found else "ended at once"
    # A pod is one machine, whose name may change when it starts anew.
    host, view = ("", "") if told.mark else (os.uname().nodename, _view())
    note = Started(pid=child.pid, started=began, attempt=attempt_of(told.spec.encode()), host=host, view=view)
    write_atomic(job.process, msgspec.json.encode(note) + b"\n", mode=0o600)
    if told.mark:
        make_dirs(Path(told.mark).parent)
        write_atomic(Path(told.mark), os.fsencode(job.path), mode=0o600)
    return began


def _feed(child: subprocess.Popen[bytes], stdin: Input) -> int:
    """Copy stdin; when it ends early, or stays silent, the trainer sees that its examples are not whole."""
    assert child.stdin is not None
    sent = 0
    try:
        with child.stdin as to:
            while data := stdin.recv(_BLOCK):
                to.write(data)
                to.flush()
                sent += len(data)
    except BrokenPipeError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_SEC)
    return sent
