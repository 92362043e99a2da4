"""A job's directory as a client may ask for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from stepctl.agent.files import origin
from stepctl.agent.launch import living, started
from stepctl.agent.within import within
from stepctl.base.files import TEMPORARY, write_atomic
from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import PIECE, Ask, Job

_END_SEC = 2.0
_GONE = f"{TEMPORARY}gone-"


def look(ask: Ask) -> Job:
    """How a job is. What says that it is over is read before what it wrote: that is whole then."""
    job = JobDir(Path(ask.job))
    last = started(job)
    told = Job(alive=living(job), exit_code=_read(job.exit_code), result=_read(job.result), saved=saved(job))
    if last is not None:
        told.pid, told.started, told.attempt = last.pid, last.started, last.attempt
    told.reason = (_read(job.reason) or b"").decode(errors="replace").strip()
    told.requested = job.requested() or ""
    told.events, told.events_size = _tail(job.events, ask.events)
    told.log, told.log_size = _tail(job.log, ask.log)
    told.more = ask.events + len(told.events) < told.events_size or ask.log + len(told.log) < told.log_size
    return told


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _tail(path: Path, offset: int) -> tuple[bytes, int]:
    """At most one piece of a file from an offset, and the size of the file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            return file.read(min(PIECE, max(size - offset, 0))), size
    except FileNotFoundError:
        return b"", 0


def saved(job: JobDir) -> list[str]:
    """Folders of the checkpoints that the job saved whole: in its own bucket, or not committed to any."""
    try:
        spec: dict[str, Any] = msgspec.json.decode(job.job.read_bytes())
        run, lineage = str(spec["run"]), str(spec["lineage"])
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):
        return []
    found = {}
    for parent in ("out", f"bucket/{lineage}/checkpoints"):
        for manifest in (job.path / parent).glob(f"*-{run}/manifest.json"):
            name = manifest.parent.name
            found[name] = f"{parent}/{name}"
    return [found[name] for name in sorted(found)]


def request(ask: Ask) -> None:
    """Ask a job for ``stop`` or ``cancel``."""
    if ask.what not in ("stop", "cancel"):
        raise OSError(f"a job cannot be asked for {ask.what!r}")
    JobDir(Path(ask.job)).request(ask.what)


def send_signal(ask: Ask) -> None:
    """Send ``TERM`` or ``KILL`` to the whole process group of a job that runs."""
    if ask.name not in ("TERM", "KILL"):
        raise OSError(f"no signal is called {ask.name!r} here")
    job = JobDir(Path(ask.job))
    last = started(job)
    if last is not None and living(job):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(last.pid, signal.Signals[f"SIG{ask.name}"])


def have(workdir: Path, ask: Ask) -> bool:
    """Whether a folder is there, and was made from what has that digest (any, when none is given)."""
    target = within(workdir, Path(ask.path))
    noted = _read(origin(target)) if ask.digest else b""
    return target.is_dir() and noted == ask.digest.encode()


def remove(workdir: Path, ask: Ask) -> None:
    """Remove a folder below the working directory; a job's only once its trainer has ended.

    Raises:
        OSError: the job runs, or may run on another machine, or the folder is elsewhere.
    """
    path = Path(ask.path)
    if not os.path.lexists(path):
        return
    target = within(workdir, path)
    deadline = time.monotonic() + _END_SEC
    while living(JobDir(target)):
        if time.monotonic() > deadline:
            raise OSError(f"the job in {target} still runs")
        time.sleep(0.05)
    target.rename(target.with_name(f"{_GONE}{os.urandom(8).hex()}"))
    for gone in target.parent.glob(f"{_GONE}*"):  # also what a removal left that was killed
        shutil.rmtree(gone)


def renew(lease: str) -> None:
    """Show that a client is there: the file's content is another one each time.

    That it cannot be written keeps no answer back; whoever reads the lease finds it old.
    """
    if not lease:
        return
    with contextlib.suppress(OSError):
        write_atomic(Path(lease), f"{time.time_ns()} {os.urandom(8).hex()}\n".encode(), mode=0o600)
