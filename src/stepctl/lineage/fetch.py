"""Getting a checkpoint out of a bucket: nothing is used before it is checked against the manifest."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from stepctl.base.errors import LineageConflict, StepctlError
from stepctl.base.files import make_dirs, sha256_bytes, sha256_file, write_atomic
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Absent, Bucket
from stepctl.lineage.manifest import damaged
from stepctl.lineage.records import FileEntry, Manifest
from stepctl.lineage.state import check_sizes
from stepctl.lineage.tree import survey_unlocked


def fetch_checkpoint(
    bucket: Bucket,
    lineage: str,
    checkpoint: str,
    expected_sha256: str | None,
    to: Path,
    *,
    only: Collection[str] | None = None,
) -> Manifest:
    """Copy the files of a checkpoint into the folder ``to``, which holds them all verified when this returns.

    Sizes are compared before anything is copied. A file that arrives different is copied once more.

    Args:
        expected_sha256: of the manifest's stored bytes, None when any will do.
        only: paths of the files that are wanted, None for all; of the others nothing is checked.

    Raises:
        StepctlError: there is no room for them.
        DamagedCheckpoint: a file, or the manifest, is not what it should be; the file and the difference are named.
        LineageConflict: other checkpoints came after it, and it is pruned (``parent_pruned``).
        BucketError: the storage fails.
    """
    tree = survey_unlocked(bucket, lineage)
    node = tree.nodes.get(checkpoint)
    if node is None:
        raise damaged(lineage, checkpoint, layout.MANIFEST, "is missing")
    if node.pruned:
        raise _pruned(lineage, checkpoint)
    if node.manifest is None:
        assert node.problem is not None
        raise node.problem
    if expected_sha256 is not None and node.sha256 != expected_sha256:
        raise damaged(lineage, checkpoint, layout.MANIFEST, f"has sha256 {node.sha256}, expected {expected_sha256}")
    entries = [entry for entry in node.manifest.files if only is None or entry.path in only]
    check_sizes(tree, node.manifest, entries)
    _check_room(checkpoint, entries, to)
    prefix = layout.checkpoint_at(lineage, checkpoint)
    try:
        bucket.fetch(prefix, [entry.path for entry in entries], to)
    except Absent:
        now = survey_unlocked(bucket, lineage).nodes.get(checkpoint)
        if now is not None and now.pruned:
            raise _pruned(lineage, checkpoint) from None
        raise
    bad = [entry for entry in entries if _problem(to, entry)]
    if bad:
        bucket.fetch(prefix, [entry.path for entry in bad], to)
    for entry in bad:
        if problem := _problem(to, entry):
            for each in entries:
                (to / each.path).unlink(missing_ok=True)
            raise damaged(lineage, checkpoint, entry.path, problem, previous=tree.previous(checkpoint))
    return node.manifest


def copy_checkpoint(bucket: Bucket, lineage: str, checkpoint: str, expected_sha256: str | None, to: Path) -> None:
    """Make the folder ``to`` a directory bucket that holds this checkpoint alone, for a job that reads it there.

    Raises:
        StepctlError: as :func:`fetch_checkpoint`.
    """
    folder = to / layout.checkpoint_at(lineage, checkpoint)
    make_dirs(folder)
    fetch_checkpoint(bucket, lineage, checkpoint, expected_sha256, folder)
    data = bucket.read(layout.manifest_at(lineage, checkpoint))
    if expected_sha256 is not None and sha256_bytes(data) != expected_sha256:
        raise damaged(lineage, checkpoint, layout.MANIFEST, f"has another sha256 than {expected_sha256}")
    write_atomic(folder / layout.MANIFEST, data)


def _pruned(lineage: str, checkpoint: str) -> LineageConflict:
    return LineageConflict(
        f"checkpoint {checkpoint} of lineage {lineage} is pruned: another writer has moved the head on meanwhile",
        safe="nothing was trained on it",
        next="run the command again: it starts at the head as it is now",
        code="parent_pruned",
        details={"lineage": lineage, "checkpoint": checkpoint},
    )


def check_folder(folder: Path, manifest: Manifest) -> None:
    """Check the files of a checkpoint in a local folder.

    Raises:
        DamagedCheckpoint: one is missing, or not what the manifest says.
    """
    for entry in manifest.files:
        if problem := _problem(folder, entry):
            raise damaged(manifest.lineage, manifest.checkpoint, entry.path, problem)


def _check_room(checkpoint: str, entries: Collection[FileEntry], to: Path) -> None:
    at = next(folder for folder in (to, *to.absolute().parents) if folder.exists())
    needed, free = sum(entry.size for entry in entries), shutil.disk_usage(at).free
    if needed > free:
        raise StepctlError(
            f"checkpoint {checkpoint} has {needed} bytes, and only {free} are free at {to}",
            safe="nothing was copied",
            next="make room there, then repeat the command",
            code="disk_full",
        )


def _problem(folder: Path, entry: FileEntry) -> str | None:
    path = folder / entry.path
    if path.is_symlink() or not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != entry.size:
        return f"has {size} bytes, the manifest says {entry.size}"
    if (found := sha256_file(path)) != entry.sha256:
        return f"has sha256 {found}, the manifest says {entry.sha256}"
    return None
