"""The run store: ``<runs>/<id>/run.json`` and what lies beside it. Written before each act on the outside world."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepctl.base.errors import StepctlError, UsageError
from stepctl.base.files import locked, make_dirs, write_atomic
from stepctl.base.names import iso, utc_now
from stepctl.jobs.directory import JobDir
from stepctl.runs.record import RUN_VERSION, UNFINISHED, RunRecord

_SECOND = len("20261130T041502")


@dataclass(frozen=True)
class Unreadable:
    """A run whose record, the file ``path``, is damaged or of a newer release."""

    run: str
    path: Path
    error: StepctlError


class RunStore:
    """All runs of a project."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, run: str) -> Path:
        """The folder of a run; a local job's directory is this same one."""
        return self.path / run

    def job_dir(self, run: str) -> JobDir:
        """Where the run's events, log and result are."""
        return JobDir(self.folder(run))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a call looks for unfinished runs and makes its own record, never while it trains."""
        make_dirs(self.path)
        with locked(self.path / ".lock"):
            yield

    @contextmanager
    def bringing(self, run: str) -> Iterator[None]:
        """Held while the run's checkpoints are fetched from its machine and committed: one call at a time."""
        with locked(self.folder(run) / ".bringing"):
            yield

    @contextmanager
    def ending(self, run: str) -> Iterator[None]:
        """Held while a run on another machine is brought to its end: one call at a time."""
        with locked(self.folder(run) / ".ending"):
            yield

    def create(self, record: RunRecord) -> None:
        """Write the intent of a new run.

        Raises:
            OSError: the store cannot be written; nothing was started.
        """
        make_dirs(self.folder(record.run))
        self._write(record)

    def update(self, run: str, change: Callable[[RunRecord], None]) -> RunRecord:
        """Change a record under its lock and write it; an ended run is never set back to an unfinished state."""
        with locked(self.folder(run) / ".lock"):
            record = self.load(run)
            before = record.state
            change(record)
            if before not in (*UNFINISHED, "needs_trace", "commit_pending") and record.state in UNFINISHED:
                record.state = before
            record.updated_at = iso(utc_now())
            self._write(record)
        return record

    def _write(self, record: RunRecord) -> None:
        data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        write_atomic(self.folder(record.run) / "run.json", data, mode=0o600)

    def load(self, run: str) -> RunRecord:
        """Read one record.

        Raises:
            StepctlError: it is of a newer release, or damaged.
        """
        path = self.folder(run) / "run.json"
        try:
            data = path.read_bytes()
            record = msgspec.json.decode(data, type=RunRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise StepctlError(
                f"{path} cannot be read: {error}",
                safe="what the run committed is in its bucket",
                next="restore that file, or move its folder away",
                code="unreadable_run",
            ) from error
        if record.version > RUN_VERSION:
            raise StepctlError(
                f"{path} was written by a newer stepctl", next="install a newer release", code="unreadable_run"
            )
        return record

    def names(self) -> list[str]:
        """Ids of all runs, oldest first."""
        try:
            found = [entry.name for entry in os.scandir(self.path) if (Path(entry.path) / "run.json").is_file()]
        except FileNotFoundError:
            return []
        return sorted(found)

    def find(self, word: str) -> str:
        """The run that ``word`` means: ``last``, an id, or a unique prefix of one.

        Raises:
            UsageError: none or several match.
        """
        names = self.names()
        if word == "last" and names:
            # An id tells the second only.
            return max((n for n in names if n[:_SECOND] == names[-1][:_SECOND]), key=lambda n: self.load(n).created_at)
        found = [name for name in names if name == word] or [name for name in names if name.startswith(word)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise UsageError(f"there is no run {word!r} in {self.path}", next="stepctl runs ls", code="no_such_run")
        raise UsageError(f"{word!r} could be any of {', '.join(found[:5])}", next="type more of the id")

    def all(self) -> tuple[list[RunRecord], list[Unreadable]]:
        """All records, oldest first, and the runs whose record cannot be read."""
        records, unreadable = [], []
        for name in self.names():
            try:
                records.append(self.load(name))
            except StepctlError as error:
                unreadable.append(Unreadable(name, self.folder(name) / "run.json", error))
        return records, unreadable

    def unfinished(self, bucket: str, lineage: str) -> tuple[list[RunRecord], list[Unreadable]]:
        """Records of this lineage that say they have not ended, or wait for their commit; and those unreadable."""
        waiting = (*UNFINISHED, "commit_pending")
        records, unreadable = self.all()
        return [r for r in records if r.state in waiting and (r.bucket, r.lineage) == (bucket, lineage)], unreadable
