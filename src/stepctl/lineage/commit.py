"""Storing checkpoints and choices. Every act here can be repeated after a crash at any point."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepctl.base.errors import LineageConflict, StepctlError, UsageError
from stepctl.base.files import sha256_bytes
from stepctl.base.names import iso, utc_now
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.head import reach, settle
from stepctl.lineage.ledger import check_ledger
from stepctl.lineage.manifest import decode_manifest, encode_manifest, manifest_problem, of
from stepctl.lineage.records import ROOT, Choice, Manifest
from stepctl.lineage.tree import Node, Tree, survey


@dataclass(frozen=True)
class CommitResult:
    """``forked`` says that ``checkpoint`` is kept, but is neither the head nor an ancestor of it."""

    checkpoint: str
    forked: bool
    head: str


def commit(
    bucket: Bucket,
    folder: Path,
    manifest: Manifest,
    *,
    choose_root: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> CommitResult:
    """Store a checkpoint: its files, then its manifest, then its claim on its parent.

    Repeating it completes what an interrupted one began; a checkpoint that is complete, or was and is pruned, is not
    stored again.

    Args:
        folder: where the files of ``manifest`` are, ``ledger.jsonl`` among them.
        choose_root: make the root that the checkpoint descends from, one named ``root-<something>``, the start of the
            head's walk, unless that was done. Said with every commit of a fresh start: its first may have failed half.
        notify: called with ``files_stored`` and ``manifest_stored`` when these are durable.

    Raises:
        StepctlError: the folder does not match the manifest, or the head is damaged (then the checkpoint is stored).
        LineageConflict: another checkpoint has this name, or another process holds the lock.
        BucketError: the storage fails; repeat the commit.
    """
    lineage, name = manifest.lineage, manifest.checkpoint
    _check_input(manifest)
    with bucket.lock(lineage):
        # A sibling whose writer died before its claim was the head for every reader until now: it stays so. A damaged
        # head is no reason to lose this work: what is wrong is said at the end.
        try:
            tree, _ = settle(bucket, lineage)
        except StepctlError:
            tree = survey(bucket, lineage)
        root = _new_root(tree, manifest) if choose_root else None
        node = tree.nodes.get(name)
        if node is None:
            _store_files(bucket, folder, manifest)
            notify("files_stored")
            if not bucket.put_new(layout.manifest_at(lineage, name), encode_manifest(manifest)):
                node = survey(bucket, lineage).nodes.get(name)
        else:
            notify("files_stored")
        if node is not None:
            _check_same(node, manifest)
        notify("manifest_stored")
        if root is not None:
            _choose_once(bucket, survey(bucket, lineage), root, manifest.run)
        tree, found = settle(bucket, lineage)
        return CommitResult(checkpoint=name, forked=name not in tree.ancestry(found.head), head=found.head)


def choose(bucket: Bucket, lineage: str, at: str, reason: str, run: str | None = None) -> Choice | None:
    """Make ``at`` the head, a complete checkpoint, or a root. What came after it stays stored, off the head's path.

    Returns:
        The record, None when ``at`` is the head already.

    Raises:
        UsageError: there is no such complete checkpoint.
        LineageConflict: another process holds the lock.
    """
    with bucket.lock(lineage):
        tree = survey(bucket, lineage)
        if not layout.is_root(at) and (at not in tree.complete or tree.nodes[at].problem is not None):
            raise UsageError(
                f"{at} is not a complete checkpoint of lineage {lineage}",
                safe="the head is as it was",
                next=f"stepctl lineage log --all{of(lineage)}",
            )
        # A damaged head is what a choice leads away from.
        now = reach(bucket, tree)
        if now.problem is None and now.head == at:
            return None
        # Those that nothing places may be children of anything; this choice is made in spite of them.
        passed = tuple(sorted(node.name for node in (*tree.children(at), *tree.unplaced)))
        left = now.head if now.head in tree.nodes else None
        choice = Choice(at=at, reason=reason, run=run, created_at=iso(utc_now()), passed_over=passed, left=left)
        _append(bucket, tree, choice)
        return choice


def _check_input(manifest: Manifest) -> None:
    if problem := manifest_problem(manifest, manifest.lineage, manifest.checkpoint):
        raise _bad_manifest(problem)


def _bad_manifest(problem: str) -> StepctlError:
    return StepctlError(f"the manifest to commit {problem}", safe="the lineage is as it was", code="bad_manifest")


def _new_root(tree: Tree, manifest: Manifest) -> str | None:
    """The root that the checkpoint descends from; None when damage hides it: that is no reason to lose this work."""
    oldest = tree.ancestry(manifest.parent)
    root = tree.nodes[oldest[-1]].parent if oldest else manifest.parent
    if root is None or not layout.is_root(root):
        return None
    if root == ROOT:
        raise _bad_manifest(f"names {manifest.parent} as its parent, which cannot be a new root")
    return root


def _store_files(bucket: Bucket, folder: Path, manifest: Manifest) -> None:
    """Store the files, and clear away what an interrupted commit of the same checkpoint left besides them."""
    try:
        ledger = (folder / layout.LEDGER).read_bytes()
    except FileNotFoundError as error:
        raise StepctlError(
            f"{folder / layout.LEDGER} is missing", safe="the lineage is as it was", code="source_changed"
        ) from error
    entry = next(entry for entry in manifest.files if entry.path == layout.LEDGER)
    if sha256_bytes(ledger) == entry.sha256:
        check_ledger(ledger, manifest)
    prefix = layout.checkpoint_at(manifest.lineage, manifest.checkpoint)
    bucket.put_files(prefix, folder, manifest.files)
    wanted = {f"{prefix}/{path}" for path in (layout.MANIFEST, *(entry.path for entry in manifest.files))}
    bucket.delete([stored.path for stored in bucket.list_files(prefix) if stored.path not in wanted])


def _check_same(node: Node, manifest: Manifest) -> None:
    """What is stored under this name must be this checkpoint."""
    if node.pruned:
        return
    if node.manifest is None:
        assert node.problem is not None
        raise node.problem
    if node.manifest != decode_manifest(encode_manifest(manifest), manifest.lineage, manifest.checkpoint):
        raise LineageConflict(
            f"lineage {manifest.lineage} has another checkpoint with the name {node.name}",
            safe="the stored one is as it was, and this one is where it was saved",
            next="stepctl status",
            code="checkpoint_differs",
        )


def _choose_once(bucket: Bucket, tree: Tree, root: str, run: str) -> None:
    if not any(choice is not None and choice.at == root for _, choice in tree.choices):
        choice = Choice(at=root, reason="fresh", run=run, created_at=iso(utc_now()))
        _append(bucket, tree, choice)


def _append(bucket: Bucket, tree: Tree, choice: Choice) -> None:
    data = msgspec.json.encode(choice) + b"\n"
    number = max((number for number, _ in tree.choices), default=0) + 1
    mark = "" if bucket.exclusive else secrets.token_hex(4)
    while not bucket.put_new(layout.choice_at(tree.lineage, number, mark), data):
        number += 1
