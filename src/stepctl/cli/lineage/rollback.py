"""``stepctl lineage rollback``: back to an earlier step."""

from __future__ import annotations

from typing import Annotated

import typer

from stepctl.base.errors import UsageError
from stepctl.cli.lineage.chosen import finish
from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output


def rollback(
    to: Annotated[int, typer.Option("--to", help="A kept step on the head's path.", metavar="STEP", min=0)],
    bucket: Bucket = None,
    lineage: Lineage = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Make the checkpoint at STEP the head; later ones stay stored, as forks. Keys trained after STEP train again."""
    from stepctl.calls.choosing import roll_back
    from stepctl.cli.display import new_display
    from stepctl.cli.session import open_world

    if to == 0:
        raise UsageError(
            "there is no checkpoint at step 0 to go back to",
            safe="the head is as it was",
            next="stepctl train FILE --fresh starts anew at step 0, and keeps what is there",
        )
    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model}, new_display())
    return finish(output, world, roll_back(world, to))
