"""``stepctl lineage use``: any complete checkpoint becomes the head."""

from __future__ import annotations

from typing import Annotated

import typer

from stepctl.cli.lineage.chosen import finish
from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output


def use(
    checkpoint: Annotated[str, typer.Argument(help="Its name, or a unique start of it.", metavar="CHECKPOINT")],
    bucket: Bucket = None,
    lineage: Lineage = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Make a complete checkpoint the head, a fork too; the others stay stored."""
    from stepctl.calls.choosing import use as call
    from stepctl.cli.display import new_display
    from stepctl.cli.session import open_world

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model}, new_display())
    return finish(output, world, call(world, checkpoint))
