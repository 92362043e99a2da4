"""All lineages of a bucket at a glance."""

from __future__ import annotations

from msgspec import Struct

from stepctl.base.errors import StepctlError
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.view import View, look


class Summary(Struct, kw_only=True):
    """One lineage. ``checkpoints`` counts the complete ones, ``forks`` those of them that are not on the head's path.

    ``bytes`` are those of all its checkpoints' files. When it is ``damaged``, ``problem`` says how, and ``head`` is
    what the head seems to be; null: there is none, or nothing can be read.
    """

    lineage: str
    head: str | None = None
    step: int = 0
    method: str | None = None
    model: str | None = None
    checkpoints: int = 0
    forks: int = 0
    bytes: int = 0
    damaged: bool = False
    problem: str | None = None


class Overview(Struct, kw_only=True):
    """All lineages of a bucket, by name. The exit code is 0 also when some are damaged."""

    bucket: str
    lineages: list[Summary]


def overview(bucket: Bucket) -> list[Summary]:
    """Every lineage of the bucket, by name; folders that are none are left out, and damage of one hides no other.

    Raises:
        BucketError: the bucket itself cannot be listed.
    """
    found = []
    for name in bucket.list_folders():
        try:
            view = look(bucket, name)
        except StepctlError as error:
            if error.code != "usage":  # a folder whose name no lineage can have
                found.append(Summary(lineage=name, damaged=True, problem=error.message))
            continue
        tree = view.tree
        if tree.nodes or tree.choices or tree.claims or tree.folders:
            found.append(summary(view))
    return found


def summary(view: View) -> Summary:
    """One lineage's line."""
    complete, path = view.tree.complete, set(view.path)
    # A damaged manifest tells neither: then the newest one beside it does.
    known = view.head.manifest if view.head and view.head.manifest else None
    known = known or (view.kept[-1] if view.kept else max(complete.values(), key=lambda m: m.step, default=None))
    hurt = {
        name: problem
        for name, node in view.tree.nodes.items()
        if not node.pruned and (problem := view.problem_of(name))
    }
    problem = view.problem.message if view.problem else None
    if problem is None and hurt:
        problem = "; ".join(f"checkpoint {name} is damaged: {what}" for name, what in sorted(hurt.items()))
    return Summary(
        lineage=view.tree.lineage,
        head=view.head.name if view.head else None,
        step=view.head.step if view.head else 0,
        method=known.identity.method if known else None,
        model=known.identity.model if known else None,
        checkpoints=len(complete),
        forks=len([name for name in complete if name not in path]),
        bytes=sum(view.bytes_of(name) for name in view.tree.folders),
        damaged=problem is not None,
        problem=problem,
    )
