"""A run whose record cannot be read: may a call go on as if it were not there?"""

from __future__ import annotations

import shlex

import msgspec
from msgspec import Struct

from stepctl.base.errors import StepctlError
from stepctl.jobs.directory import JobDir
from stepctl.runs.store import RunStore, Unreadable


class _Where(Struct):
    """The part of ``job.json`` that says which lineage a trainer was started for."""

    bucket: str
    lineage: str


def pass_over(store: RunStore, found: Unreadable, bucket: str, lineage: str) -> str:
    """The warning with which a call on this lineage passes over the run.

    What lies beside the record tells enough where no trainer was ever started (the client that would do so cannot read
    the record either), where it was started for another lineage, and where it ended with nothing saved but not
    committed.

    Raises:
        StepctlError: the run may be training this lineage, or hold a checkpoint of it that is not in the bucket.
    """
    job = store.job_dir(found.run)
    saved = any(job.out.glob("*/manifest.json"))
    away = shlex.join(["mv", str(store.folder(found.run)), f"{store.path.parent}/"])
    ended = job.exit_code.exists() and not saved
    if ended or not job.job.exists() or _is_elsewhere(job, bucket, lineage):
        return f"run {found.run} is passed over: {found.error.message}; to hear no more of it: {away}"
    unsure = "may have saved a checkpoint that is not in the bucket" if saved else "may still be training"
    raise StepctlError(
        f"{found.error.message}, and run {found.run} of lineage {lineage!r} {unsure}",
        safe="nothing was trained by this call, and the head is as it was",
        next=f"restore that file; or, when no process of stepctl.trainer with this folder is left: {away}",
        code="unreadable_run",
        details={"run": found.run, "path": str(found.path)},
    )


def _is_elsewhere(job: JobDir, bucket: str, lineage: str) -> bool:
    try:
        where = msgspec.json.decode(job.job.read_bytes(), type=_Where)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return (where.bucket, where.lineage) != (bucket, lineage)
