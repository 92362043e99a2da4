"""``stepctl pod logs``: what a pod's container said."""

from __future__ import annotations

from typing import Annotated

import typer

from stepctl.cli.options import Json, PodTarget
from stepctl.cli.output import Output


def logs(
    name: Annotated[str, typer.Argument(help="Run (id, prefix, last), or a pod's id.", metavar="RUN|POD")],
    tail: Annotated[int, typer.Option(help="Lines of the past.", min=1, max=5000)] = 200,
    target: PodTarget = None,
    json: Json = False,
) -> int:
    """Print the log of a pod's container: its start, its watchdog. Of a pod that is gone, what was captured."""
    from stepctl.calls.account import account
    from stepctl.calls.pods import log_lines
    from stepctl.cli.session import open_world

    output = Output(json)
    world = open_world(output, {})
    with account(world, target, name) as rented:
        lines = log_lines(world, rented, name, tail)
    output.result({"lines": lines}, lines)
    return 0
