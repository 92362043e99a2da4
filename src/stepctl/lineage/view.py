"""A lineage as far as it can be seen: damage is told, and does not hide the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stepctl.base.errors import StepctlError
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Absent, Bucket, BucketError, Stored
from stepctl.lineage.head import Walk, reach
from stepctl.lineage.records import LedgerLine, Manifest
from stepctl.lineage.state import size_problems, state_of
from stepctl.lineage.tree import Node, Tree, survey

_READS = 8


@dataclass(frozen=True)
class View:
    """``problem`` is what is wrong with the head, or keeps it from being known; then ``walk.head`` is a guess."""

    tree: Tree
    walk: Walk
    problem: StepctlError | None

    @property
    def head(self) -> Node | None:
        """The head, None at a root."""
        return self.tree.nodes.get(self.walk.head)

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The head and its ancestors, oldest first, pruned ones too."""
        return tuple(reversed(self.tree.ancestry(self.walk.head)))

    @property
    def kept(self) -> list[Manifest]:
        """The complete checkpoints of the path, oldest first."""
        return [self.tree.complete[name] for name in self.path if name in self.tree.complete]

    @cached_property
    def lines(self) -> dict[str, LedgerLine]:
        """What is known of each checkpoint, from the ledgers; where they are bad, from the manifests."""
        known = {line.checkpoint: line for ledger in self.tree.ledgers.values() for line in ledger}
        for name, manifest in self.tree.complete.items():
            known.setdefault(name, _line_of(manifest))
        return known

    @property
    def ledger(self) -> list[LedgerLine]:
        """The lines of the path, oldest first."""
        return [self.lines[name] for name in self.path if name in self.lines]

    def bytes_of(self, name: str) -> int:
        """Size of all stored files of a checkpoint."""
        return sum(stored.size for stored in self.tree.folders.get(name, {}).values())

    def problem_of(self, name: str) -> str | None:
        """What is wrong with a stored checkpoint, as far as it shows without reading its files."""
        node = self.tree.nodes[name]
        if node.problem is not None:
            about = node.problem.details
            return f"{about['path']} {about['problem']}" if "path" in about else node.problem.message
        if node.manifest is None:
            return None
        found = size_problems(node.manifest, self.tree.folders[name])
        return "; ".join(f"{path} {problem}" for path, problem in found.items()) or None


def look(bucket: Bucket, lineage: str) -> View:
    """Read a lineage without a lock and without judging it; one that does not exist is empty.

    What looks wrong counts only when the listing is the same the next time: writers may be at work.

    Raises:
        UsageError: the name is none.
        BucketError: the storage fails.
    """
    before: tuple[Stored, ...] | None = None
    for _ in range(_READS):
        try:
            view = _look_once(bucket, lineage)
        except Absent:
            before = None
            continue
        wrong = view.problem is not None or bool(view.walk.notes)
        if not wrong or view.tree.listing == before:
            return view
        before = view.tree.listing
    raise StepctlError(f"lineage {lineage} keeps changing", safe="nothing is lost", next="repeat the command")


def _look_once(bucket: Bucket, lineage: str) -> View:
    tree = survey(bucket, lineage)
    found = reach(bucket, tree)
    problem = found.problem
    if problem is None:
        try:
            state_of(bucket, tree, found)
        except BucketError:
            raise
        except StepctlError as error:
            problem = error
    return View(tree, found, problem)


def _line_of(manifest: Manifest) -> LedgerLine:
    parent = layout.parse_checkpoint(manifest.parent)
    return LedgerLine(
        checkpoint=manifest.checkpoint,
        parent=manifest.parent,
        run=manifest.run,
        key=manifest.key,
        trace_sha256=manifest.trace_sha256,
        rows_done=manifest.rows_done,
        rows_total=manifest.rows_total,
        from_step=parent[0] if parent else 0,
        step=manifest.step,
        loss=manifest.loss,
        created_at=manifest.created_at,
        exact=manifest.exact,
    )
