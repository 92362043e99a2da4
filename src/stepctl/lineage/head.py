"""The head's rule: start at the newest choice, or at the root; at each checkpoint follow the child that came first."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from stepctl.base.errors import DamagedCheckpoint, StepctlError
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Bucket, BucketError
from stepctl.lineage.manifest import damaged, of
from stepctl.lineage.records import ROOT
from stepctl.lineage.tree import Node, Tree, survey

DAMAGE = ("damaged_checkpoint", "damaged_lineage")
"""Codes of the errors that say that a head cannot be used or known; a choice leads out of them."""

_ROUNDS = 20


class Claim(Struct, frozen=True, kw_only=True):
    """Made once for a parent: ``child`` is the one that counts as stored first."""

    child: str


@dataclass(frozen=True)
class _Start:
    """Where the walk starts, the key of its claim, the children passed over, and why it is not the newest choice."""

    at: str
    key: str
    passed: frozenset[str]
    problem: StepctlError | None


@dataclass
class Walk:
    """``head`` is a usable checkpoint, or the root when nothing extends it. ``notes`` is what a person should know.

    ``unclaimed`` are steps of the walk without a claim, ``stale`` the keys among them whose claim names a checkpoint
    that is gone. With a ``problem``, ``head`` is only how far one can see.
    """

    head: str
    unclaimed: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: StepctlError | None = None


def walk(bucket: Bucket, tree: Tree) -> Walk:
    """Find the head.

    Raises:
        DamagedCheckpoint: the head, or what may be the head, cannot be used.
        StepctlError: the newest choice cannot be read, or what the walk should end at is gone (``damaged_lineage``).
    """
    found = reach(bucket, tree)
    if found.problem is not None:
        raise found.problem
    return found


def reach(bucket: Bucket, tree: Tree) -> Walk:
    """Go as far as can be seen, past a choice that cannot be read; the first thing that is wrong is the ``problem``.

    Raises:
        BucketError: the storage fails.
    """
    start = _start(tree)
    found, key, passed = Walk(head=start.at, problem=start.problem), start.key, start.passed
    try:
        while child := _follow(bucket, tree, found, key, passed):
            found.head = key = child
            passed = frozenset()
        _check_end(tree, found.head, start.passed)
    except BucketError:
        raise
    except StepctlError as error:
        found.problem = found.problem or error
    return found


def settle(bucket: Bucket, lineage: str) -> tuple[Tree, Walk]:
    """Make the missing claims along the head's path, so that no later sibling changes it. The caller holds the lock.

    Raises:
        StepctlError: as :func:`walk` does.
    """
    for _ in range(_ROUNDS):
        tree = survey(bucket, lineage)
        found = walk(bucket, tree)
        if not bucket.exclusive or not found.unclaimed:
            return tree, found
        bucket.delete([layout.claim_at(lineage, key) for key in found.stale])
        for key, child in found.unclaimed.items():
            bucket.put_new(layout.claim_at(lineage, key), msgspec.json.encode(Claim(child=child)) + b"\n")
    raise StepctlError(f"lineage {lineage} keeps changing", safe="nothing is lost", next="repeat the command")


def damaged_lineage(lineage: str, message: str) -> StepctlError:
    """The error for a lineage whose head cannot be known."""
    return StepctlError(
        f"lineage {lineage} is damaged: {message}",
        safe="nothing was trained, and the stored files are as they were",
        next=f"restore what is missing, or go on from a complete checkpoint (stepctl lineage log{of(lineage)} lists "
        f"them): stepctl lineage use CHECKPOINT{of(lineage)}",
        code="damaged_lineage",
    )


def _start(tree: Tree) -> _Start:
    problem = None
    for number, choice in reversed(tree.choices):
        if choice is not None and (layout.is_root(choice.at) or choice.at in tree.nodes):
            passed = frozenset(choice.passed_over)
            return _Start(choice.at, layout.claim_key(choice.at, number), passed, problem)
        what = (
            f"{layout.choice_at(tree.lineage, number)} cannot be read"
            if choice is None
            else f"checkpoint {choice.at}, which was chosen as the start, is gone"
        )
        problem = problem or damaged_lineage(tree.lineage, what)
    return _Start(ROOT, ROOT, frozenset(), problem)


def _follow(bucket: Bucket, tree: Tree, found: Walk, key: str, passed: frozenset[str]) -> str | None:
    """The child to go on to from ``found.head``. A step without a valid claim is put down in ``found``."""
    kids = [node for node in tree.children(found.head) if node.name not in passed]
    first = kids[0].name if kids else None
    if not bucket.exclusive:
        return first
    if key not in tree.claims:
        if first is not None:
            found.unclaimed[key] = first
        return first
    if len(kids) == 1 and kids[0].pruned:
        return first  # nothing else can be meant, and reading a claim for each step ever made takes long
    name = _read_claim(bucket, tree.lineage, key)
    if any(node.name == name for node in kids):
        return name
    return _without(tree, found, key, name, first)


def _without(tree: Tree, found: Walk, key: str, name: str, first: str | None) -> str | None:
    """Where to go on when the claimed child ``name`` is not there: files get deleted by hand."""
    at = found.head
    unplaced = tree.nodes.get(name)
    if unplaced is not None and unplaced.parent is None and unplaced.problem is not None:
        raise unplaced.problem
    if first is None and layout.is_root(at):
        _check_end(tree, at, _start(tree).passed)
        raise damaged_lineage(tree.lineage, f"checkpoint {name}, the first after {at}, is gone, and so is all after it")
    found.notes.append(
        f"checkpoint {name} came first after {at}, but it is gone or has no manifest: "
        + (f"{first} is followed instead" if first else f"the head is {at}")
    )
    if first is not None:
        found.unclaimed[key] = first
        found.stale.append(key)
    return first


def _read_claim(bucket: Bucket, lineage: str, key: str) -> str:
    try:
        return msgspec.json.decode(bucket.read(layout.claim_at(lineage, key)), type=Claim).child
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "(unreadable claim)"


def _with_way_back(tree: Tree, node: Node, problem: StepctlError) -> StepctlError:
    """``problem``, naming the checkpoint to go back to as well, if it is damage and there is one."""
    previous = tree.previous(node.name)
    if previous is None or not isinstance(problem, DamagedCheckpoint):
        return problem
    path, what = problem.details["path"], problem.details["problem"]
    return damaged(tree.lineage, node.name, str(path), str(what), previous=previous)


def _check_end(tree: Tree, at: str, passed: frozenset[str]) -> None:
    node = tree.nodes.get(at)
    if node is not None and node.problem is not None:
        raise _with_way_back(tree, node, node.problem)
    if node is not None and node.manifest is None:
        raise damaged_lineage(tree.lineage, f"checkpoint {at}, which should be the head, is gone")
    step = node.step if node else 0
    for other in tree.unplaced:
        # It may be the head itself; going on from an older one would hide that.
        if other.problem is not None and other.step > step and other.name not in passed:
            raise other.problem
