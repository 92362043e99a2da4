"""``stepctl lineage forks``: complete checkpoints beside the head's path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.lineage.store import Fork


def forks(bucket: Bucket = None, lineage: Lineage = None, model: Model = None, json: Json = False) -> int:
    """List the complete checkpoints that are not part of the head, and where each leaves its path."""
    from stepctl.cli.session import given_again, open_world
    from stepctl.lineage.store import Forks, look
    from stepctl.lineage.store import forks as find

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model})
    settings = world.loaded.settings
    view = look(world.bucket(), settings.lineage)
    found = find(view)
    document = Forks(
        lineage=settings.lineage,
        bucket=settings.bucket,
        head=view.head.name if view.head else None,
        problem=view.problem.message if view.problem else None,
        forks=found,
    )
    nothing = [f"lineage {settings.lineage} has no forks: all its checkpoints are on the head's path"]
    output.result(document, _lines(found, given_again(world)) if found else nothing)
    if view.problem is not None:
        output.warning(view.problem.message)
    return 0


def _lines(found: list[Fork], again: str) -> Iterator[str]:
    from stepctl.cli.display import size

    before: str | None = ""
    for fork in found:
        if fork.leaves != before:
            before = fork.leaves
            yield f"after {fork.leaves}:" if fork.leaves else "from a start of their own:"
        runs = f"{len(fork.runs)} run" + ("s" if len(fork.runs) != 1 else "")
        yield f"  {fork.checkpoint}  steps {fork.leaves_step} -> {fork.step} by {runs}  {size(fork.bytes)}"
        if fork.problem is not None:
            yield f"    damaged: {fork.problem}"
    yield f"to go on from one: stepctl lineage use CHECKPOINT{again}"
