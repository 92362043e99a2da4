"""Checking a whole lineage: every stored byte against its manifest."""

from __future__ import annotations

from dataclasses import dataclass

from stepctl.base.errors import StepctlError
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Absent, Bucket
from stepctl.lineage.head import walk
from stepctl.lineage.records import Manifest
from stepctl.lineage.state import size_problems
from stepctl.lineage.tree import Node, Tree, read_ledger, survey


@dataclass(frozen=True)
class Damage:
    """``path`` is relative to the checkpoint; ``checkpoint`` is empty when the lineage as a whole is concerned."""

    checkpoint: str
    path: str
    problem: str


@dataclass(frozen=True)
class Report:
    """``checkpoints`` were checked; ``incomplete`` have no manifest; ``extra`` are paths that belong to nothing."""

    checkpoints: list[str]
    damages: list[Damage]
    incomplete: list[str]
    extra: list[str]
    notes: list[str]


def verify(bucket: Bucket, lineage: str) -> Report:
    """Read every file of every complete checkpoint and compare. Changes nothing, and needs no lock.

    Raises:
        BucketError: the storage fails.
    """
    bucket = bucket.uncached()
    tree = survey(bucket, lineage)
    damages: list[Damage] = []
    for name in sorted(tree.nodes):
        node = tree.nodes[name]
        if node.manifest is not None:
            damages += check_checkpoint(bucket, tree, node.manifest)
        elif node.problem is not None:
            damages.append(_as_damage(name, node.problem))
    if damages:
        # A checkpoint that was pruned meanwhile is not damaged.
        now = survey(bucket, lineage)
        damages = [damage for damage in damages if not _is_gone(now.nodes.get(damage.checkpoint))]
    notes: list[str] = []
    try:
        notes = walk(bucket, tree).notes
    except StepctlError as error:
        if error.details.get("checkpoint") not in {damage.checkpoint for damage in damages}:
            damages.append(_as_damage("", error))
    return Report(
        checkpoints=sorted(tree.complete),
        damages=damages,
        incomplete=tree.incomplete,
        extra=sorted([*tree.strays, *_extra(tree)]),
        notes=notes,
    )


def check_checkpoint(bucket: Bucket, tree: Tree, manifest: Manifest) -> list[Damage]:
    """Read every file of one checkpoint and compare.

    Raises:
        BucketError: the storage fails.
    """
    lineage, name = manifest.lineage, manifest.checkpoint
    problems = size_problems(manifest, tree.folders[name])
    for entry in manifest.files:
        if entry.path in problems:
            continue
        try:
            found = bucket.sha256(f"{layout.checkpoint_at(lineage, name)}/{entry.path}")
        except Absent:
            problems[entry.path] = "is missing"
            continue
        if found != entry.sha256:
            problems[entry.path] = f"has sha256 {found}, the manifest says {entry.sha256}"
    damages = [Damage(name, path, problem) for path, problem in problems.items()]
    if layout.LEDGER not in problems:
        damages += _check_ledger(bucket, tree, manifest)
    return damages


def _check_ledger(bucket: Bucket, tree: Tree, manifest: Manifest) -> list[Damage]:
    try:
        ledger = read_ledger(bucket, manifest, tree.folders[manifest.checkpoint])
    except StepctlError as error:
        return [_as_damage(manifest.checkpoint, error)]
    wrong = [
        f"says that {line.checkpoint} extends {line.parent}, which others deny"
        for line in ledger
        if line.checkpoint in tree.nodes and tree.nodes[line.checkpoint].parent != line.parent
    ]
    return [Damage(manifest.checkpoint, layout.LEDGER, problem) for problem in wrong]


def _as_damage(checkpoint: str, error: StepctlError) -> Damage:
    path, problem = error.details.get("path", ""), error.details.get("problem", error.message)
    return Damage(checkpoint, str(path), str(problem))


def _is_gone(node: Node | None) -> bool:
    return node is None or node.pruned


def _extra(tree: Tree) -> list[str]:
    extra = []
    for name, manifest in tree.complete.items():
        known = {entry.path for entry in manifest.files} | {layout.MANIFEST}
        extra += [stored.path for path, stored in tree.folders[name].items() if path not in known]
    return extra
