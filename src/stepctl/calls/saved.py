"""Checkpoints that a job saved and that are not in the bucket yet: finding them here, and committing them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepctl.base.errors import StepctlError
from stepctl.base.names import utc_now
from stepctl.calls.world import World
from stepctl.jobs.directory import JobDir
from stepctl.lineage.records import Manifest
from stepctl.lineage.store import check_folder, clean_leftovers, commit, decode_manifest, prune
from stepctl.runs.record import RunRecord


@dataclass(frozen=True)
class Saved:
    """One saved checkpoint, whole and verified."""

    folder: Path
    manifest: Manifest


def saved_checkpoints(job: JobDir, lineage: str) -> list[Saved]:
    """What lies whole in the job's ``out`` folder here, oldest step first.

    Raises:
        OSError: something there cannot be read.
    """
    found = []
    for folder in sorted(job.out.glob("*")):
        try:
            manifest = decode_manifest((folder / "manifest.json").read_bytes(), lineage, folder.name)
            check_folder(folder, manifest)
        except (FileNotFoundError, NotADirectoryError, StepctlError):
            continue  # not whole, or not one
        found.append(Saved(folder, manifest))
    return sorted(found, key=lambda each: each.manifest.step)


def commit_saved(world: World, record: RunRecord) -> tuple[Manifest, bool] | None:
    """Commit all that is saved here, in the order of their steps: each extends the one before.

    When the head has moved meanwhile this makes a fork: the work is kept all the same. What is committed stays here
    until the run's record says so: a call that is killed between the two finds it again.

    Returns:
        The newest of them and whether it is a fork, None when there was none.

    Raises:
        StepctlError, OSError: the bucket refuses; what is not committed stays here.
    """
    found = saved_checkpoints(world.store.job_dir(record.run), record.lineage)
    done = None
    for each in found:
        done = each.manifest, _commit(world, record, each)
    return done


def _commit(world: World, record: RunRecord, saved: Saved) -> bool:
    bucket = world.open(record.bucket)
    done = commit(bucket, saved.folder, saved.manifest, choose_root=record.new_root)
    try:
        prune(bucket, record.lineage, record.settings.get("keep_checkpoints", 3))
        clean_leftovers(bucket, record.lineage, record.run, utc_now())
    except (OSError, StepctlError) as error:
        # The commit holds all the same, and the next one prunes again.
        world.listener.notice(f"warning: old checkpoints were not removed: {error}")
    return done.forked
