"""Deleting: old checkpoints of the head's path, and what interrupted commits left. Nothing else is ever deleted."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from stepctl.base.errors import UsageError
from stepctl.base.files import TEMPORARY
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Bucket, Stored
from stepctl.lineage.head import settle
from stepctl.lineage.state import state_of
from stepctl.lineage.tree import Folder, survey

LEFTOVER_AGE = timedelta(days=7)


def prune(bucket: Bucket, lineage: str, keep: int) -> list[str]:
    """Keep the head and the newest of its ancestors, ``keep`` complete checkpoints in all; delete its other ancestors.

    Forks stay. A checkpoint is deleted only if the head's verified ledger names it, so that its runs and keys stay
    known. An interrupted deletion is completed by the next one.

    Returns:
        The names of the deleted checkpoints, oldest first.

    Raises:
        UsageError: ``keep`` is below 1.
        DamagedCheckpoint: the head is damaged; then nothing is deleted.
        LineageConflict: another process holds the lock.
    """
    if keep < 1:
        raise UsageError(f"cannot keep {keep} checkpoints", next="keep at least 1: the head")
    with bucket.lock(lineage):
        tree, found = settle(bucket, lineage)
        named = [line.checkpoint for line in state_of(bucket, tree, found).ledger]
        kept = [name for name in named if name in tree.complete][-keep:]
        if not kept:
            return []
        older = named[: named.index(kept[0])]
        # Without a manifest: its deletion was interrupted.
        doomed = [name for name in older if name in tree.complete or name in tree.incomplete]
        for name in doomed:
            _delete_checkpoint(bucket, lineage, name, tree.folders[name])
        return doomed


def clean_leftovers(bucket: Bucket, lineage: str, run: str, now: datetime) -> list[str]:
    """Delete incomplete checkpoints and temporary files that are of ``run``, or untouched for 7 days.

    Of a link, the link itself is deleted.

    Returns:
        The deleted paths.

    Raises:
        LineageConflict: another process holds the lock.
        BucketError: the storage fails.
    """
    before = int((now - LEFTOVER_AGE).timestamp() * 1e9)
    with bucket.lock(lineage):
        tree = survey(bucket, lineage)
        doomed: list[str] = []
        for name in tree.incomplete:
            files = tree.folders[name].values()
            if _is_of(run, name) or max(stored.stored_at for stored in files) < before:
                doomed += [stored.path for stored in files]
        for stored in _temporary(tree.listing):
            name = stored.path.removeprefix(layout.checkpoints_at(lineage) + "/").partition("/")[0]
            ours = _is_of(run, name) or stored.stored_at < before
            if ours and stored.path not in doomed and name not in tree.incomplete:
                doomed.append(stored.path)
        bucket.delete(doomed)
        return doomed


def _delete_checkpoint(bucket: Bucket, lineage: str, name: str, folder: Folder) -> None:
    manifest = layout.manifest_at(lineage, name)
    bucket.delete([manifest])
    bucket.delete([stored.path for stored in folder.values() if stored.path != manifest])


def _temporary(listing: Iterable[Stored]) -> list[Stored]:
    return [stored for stored in listing if stored.path.rsplit("/", 1)[-1].startswith(TEMPORARY)]


def _is_of(run: str, checkpoint: str) -> bool:
    parsed = layout.parse_checkpoint(checkpoint)
    return parsed is not None and parsed[1] == run
