"""``stepctl lineage pull``: a checkpoint's adapter as a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepctl.base.errors import UsageError
from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output


def pull(
    to: Annotated[Path, typer.Argument(help="A new or empty folder.", metavar="DIR")],
    step: Annotated[int | None, typer.Option(help="A kept step on the head's path.", min=1)] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Any complete checkpoint, or a unique start of its name.", metavar="NAME")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="The whole checkpoint, not the adapter alone.")] = False,
    bucket: Bucket = None,
    lineage: Lineage = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Copy the head's adapter, verified, into DIR: PeftModel.from_pretrained(base, DIR) loads it."""
    from stepctl.calls.pull import pull as call
    from stepctl.cli.display import size
    from stepctl.cli.session import open_world

    if step is not None and checkpoint is not None:
        raise UsageError("--step and --checkpoint both name what to pull", next="give one of them")
    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model})
    done = call(world, to, step=step, name=checkpoint, whole=whole)
    what = f"{done.checkpoint} of lineage {done.lineage}"
    if done.state == "unchanged":
        lines = [f"nothing to do: {done.path} holds {what} already"]
    else:
        lines = [f"{what} is in {done.path}", f"files: {', '.join(done.files)} ({size(done.bytes)})"]
    output.result(done, [*lines, f"base model: {done.model}"])
    return done.exit_code
