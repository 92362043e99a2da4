"""``lineage rollback`` and ``lineage use``: making another checkpoint the head. Nothing is deleted, nothing trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from stepctl.base.errors import LineageConflict, UsageError
from stepctl.calls.settle import unfinished
from stepctl.calls.world import World
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.head import Walk
from stepctl.lineage.manifest import damaged, of
from stepctl.lineage.records import ROOT, Choice, LedgerLine, Manifest
from stepctl.lineage.store import View, choose, look
from stepctl.lineage.verify import check_checkpoint

_NAMED = 5


@dataclass(frozen=True)
class How:
    """What a refusal says is safe, and the command that takes a checkpoint by its name."""

    safe: str
    by_name: str


MOVING = How("the head is as it was", "stepctl lineage use")
COPYING = How("nothing was copied", "stepctl lineage pull DIR --checkpoint")


class Chosen(Struct, kw_only=True):
    """``state`` is done, or unchanged when ``head`` was the head already.

    ``left`` was the head until then, at ``left_step`` (null: there was none), and ``left_problem`` what was wrong with
    it. ``left_behind`` are the complete checkpoints that are not on the head's path any more; they stay stored, as
    forks. ``keys_again`` are the keys that train again, in whole or in part, because what they trained is not in the
    head any more.
    ``rows_done`` of ``rows_total`` rows of the new head's trace are trained.
    """

    state: str
    lineage: str
    bucket: str
    reason: str
    head: str
    step: int
    rows_done: int
    rows_total: int
    left: str | None
    left_step: int
    left_problem: str | None
    left_behind: list[str]
    keys_again: list[str]
    exit_code: int = 0


def roll_back(world: World, step: int) -> Chosen:
    """Make the checkpoint at exactly ``step`` on the head's path the head.

    Raises:
        UsageError: there is none at that step; those that are kept are listed.
        LineageConflict: a run of the lineage is not finished.
        DamagedCheckpoint: that checkpoint is damaged.
    """
    return _move_head(world, lambda view: pick_step(view, step), "rollback")


def use(world: World, word: str) -> Chosen:
    """Make a complete checkpoint the head, on the path or beside it; ``word`` is its name or a unique start of it.

    Raises:
        UsageError: none or several match.
        LineageConflict: a run of the lineage is not finished.
        DamagedCheckpoint: that checkpoint is damaged.
    """
    return _move_head(world, lambda view: pick_name(view, word), "use")


def _move_head(world: World, pick: Callable[[View], Manifest], reason: str) -> Chosen:
    """Under the lock that ``train`` takes for its own decision: no call of this project reads the head meanwhile."""
    settings, bucket = world.loaded.settings, world.bucket()
    with world.store.lock():
        _require_idle(world, settings.bucket, settings.lineage)
        view = look(bucket, settings.lineage)
        chosen = pick(view)
        _require_whole(bucket, view, chosen)
        done = choose(bucket, settings.lineage, chosen.checkpoint, reason)
    if done is not None and done.left != (view.head.name if view.head else None):
        view = _as_left(bucket, settings.lineage, done)
    return _chosen(view, chosen, settings.bucket, reason, changed=done is not None)


def _as_left(bucket: Bucket, lineage: str, done: Choice) -> View:
    """The lineage with the head that was really left: another machine moved it after it was looked at."""
    tree = look(bucket, lineage).tree
    return View(tree, Walk(head=done.left or ROOT), None)


def _require_idle(world: World, bucket: str, lineage: str) -> None:
    other = unfinished(world, bucket, lineage, past_damage=True)
    if other is not None:
        raise LineageConflict(
            f"run {other.run} of lineage {lineage!r} is not finished, and its next checkpoint would become a fork",
            safe="the head is as it was",
            next=f"stepctl train attach {other.run} (or train stop, train cancel), then repeat the command",
            code="busy",
            details={"run": other.run},
        )


def _require_whole(bucket: Bucket, view: View, manifest: Manifest) -> None:
    """Every byte of it: the head that is left may be damaged, and so may others be."""
    name = manifest.checkpoint
    for damage in check_checkpoint(bucket, view.tree, manifest):
        raise damaged(manifest.lineage, name, damage.path, damage.problem, previous=view.tree.previous(name))


def pick_step(view: View, step: int, how: How = MOVING) -> Manifest:
    """The checkpoint at exactly ``step`` on the head's path.

    Raises:
        UsageError: there is none; the kept steps are listed.
    """
    kept = view.kept
    found = next((manifest for manifest in kept if manifest.step == step), None)
    if found is not None:
        return found
    steps = ", ".join(str(manifest.step) for manifest in kept) or "none"
    there = sorted(m.checkpoint for m in view.tree.complete.values() if m.step == step)
    beside = [name for name in there if view.problem_of(name) is None]
    pruned = any(view.tree.nodes[name].step == step for name in view.path)
    why = f"step {step} is pruned" if pruned else f"no checkpoint of the head's path is at step {step}"
    raise UsageError(
        f"lineage {view.tree.lineage}: {why} (kept steps: {steps})",
        safe=how.safe,
        next=_instead(view, kept, beside, how),
        code="no_such_step",
        details={"step": step, "kept": [manifest.step for manifest in kept], "forks": there},
    )


def _instead(view: View, kept: list[Manifest], beside: list[str], how: How) -> str:
    option = of(view.tree.lineage)
    if beside:
        return f"{how.by_name} {beside[0]}{option} (a fork at that step)"
    return "give one of the kept steps" if kept else f"stepctl lineage log{option}, or stepctl lineage ls for others"


def pick_name(view: View, word: str, how: How = MOVING) -> Manifest:
    """The complete checkpoint whose name is ``word``, or alone begins with it.

    Raises:
        UsageError: none or several match; the candidates are listed.
    """
    complete, lineage = view.tree.complete, view.tree.lineage
    found = [word] if word in complete else sorted(name for name in complete if word and name.startswith(word))
    if len(found) == 1:
        return complete[found[0]]
    if found:
        raise UsageError(
            f"{word!r} could be any of {', '.join(found[:10])}",
            safe=how.safe,
            next="type more of the name",
            code="ambiguous_checkpoint",
            details={"candidates": found},
        )
    known = sorted(name for name in view.tree.nodes if word and name.startswith(word))
    why = f"checkpoint {known[0]} is pruned or damaged" if known else f"it has none whose name begins with {word!r}"
    newest = sorted(complete, reverse=True)[:_NAMED]
    raise UsageError(
        f"lineage {lineage} has no such complete checkpoint: {why}",
        safe=how.safe,
        next=f"name one of its newest: {', '.join(newest)}" if newest else "stepctl lineage ls shows other lineages",
        code="no_such_checkpoint",
        details={"checkpoints": sorted(complete)},
    )


def _chosen(view: View, chosen: Manifest, bucket: str, reason: str, *, changed: bool) -> Chosen:
    kept = set(view.tree.ancestry(chosen.checkpoint))
    return Chosen(
        state="done" if changed else "unchanged",
        lineage=view.tree.lineage,
        bucket=bucket,
        reason=reason,
        head=chosen.checkpoint,
        step=chosen.step,
        rows_done=chosen.rows_done,
        rows_total=chosen.rows_total,
        left=view.head.name if view.head else None,
        left_step=view.head.step if view.head else 0,
        left_problem=view.problem.message if view.problem else None,
        left_behind=[m.checkpoint for m in view.kept if m.checkpoint not in kept],
        keys_again=keys_again(view.ledger, [view.lines[name] for name in kept if name in view.lines]),
    )


def keys_again(before: list[LedgerLine], now: list[LedgerLine]) -> list[str]:
    """The keys of one ancestry of which another has fewer rows, in order of their first use."""
    rows: dict[str, int] = {}
    for line in now:
        if line.key is not None:
            rows[line.key] = max(rows.get(line.key, 0), line.rows_done)
    lost = [line.key for line in before if line.key is not None and line.rows_done > rows.get(line.key, 0)]
    return list(dict.fromkeys(lost))
