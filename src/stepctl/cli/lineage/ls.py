"""``stepctl lineage ls``: all lineages of the bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepctl.cli.options import Bucket, Json, Model
from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.lineage.store import Summary


def ls(bucket: Bucket = None, model: Model = None, json: Json = False) -> int:
    """List the lineages of the bucket: head, method, model, checkpoints, forks, size, damage."""
    from stepctl.cli.session import open_world
    from stepctl.lineage.store import Overview, overview

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "model": model})
    url = world.loaded.settings.bucket
    found = overview(world.bucket())
    output.result(Overview(bucket=url, lineages=found), _lines(found) if found else [f"no lineages in {url} yet"])
    return 0


def _lines(found: list[Summary]) -> Iterator[str]:
    from stepctl.cli.display import size

    width = max(8, *(len(each.lineage) for each in found))
    yield f"{'lineage':<{width}} {'step':>6} {'method':<6} {'checkpoints':>11} {'forks':>5} {'size':>9}  model"
    for each in found:
        yield (
            f"{each.lineage:<{width}} {each.step:>6} {each.method or '-':<6} {each.checkpoints:>11} {each.forks:>5} "
            f"{size(each.bytes):>9}  {each.model or '-'}"
        )
        if each.head is not None:
            yield f"{'':<{width}} head: {each.head}"
        if each.problem is not None:
            yield f"{'':<{width}} damaged: {each.problem}"
