"""``stepctl pod rm``: end a pod, confirmed."""

from __future__ import annotations

from typing import Annotated

import typer

from stepctl.cli.options import Json, PodTarget
from stepctl.cli.output import Output


def rm(
    name: Annotated[str, typer.Argument(help="Run (id, prefix, last), or a pod's id or name.", metavar="RUN|POD")],
    target: PodTarget = None,
    json: Json = False,
) -> int:
    """End the pods of a run, or one pod, and wait until the provider confirms it (exit 8 when it does not). A job that
    runs there is lost: stepctl train stop RUN saves it first."""
    from stepctl.calls.removing import rm as call
    from stepctl.cli.session import open_world

    output = Output(json)
    world = open_world(output, {})
    done = call(world, target, name)
    from stepctl.cli.display import dollars

    lines = [
        f"gone: pod {each['pod']}" + (f", {dollars(each['spent_usd'])} in all" if each["spent_usd"] is not None else "")
        for each in done["ended"]
    ]
    output.result(done, lines or ["that run has no pod"])
    return 0
