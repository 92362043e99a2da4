"""``stepctl pod reap``: for cron and CI."""

from __future__ import annotations

from typing import Annotated

import typer

from stepctl.cli.options import Json, PodTarget
from stepctl.cli.output import Output


def reap(
    target: PodTarget = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be ended; end nothing.")] = False,
    json: Json = False,
) -> int:
    """End pods of ours, of any machine, that are past their own deadline, and delete leftover secrets. Others are left
    alone."""
    from stepctl.calls.account import account
    from stepctl.calls.pods import reap as call
    from stepctl.cli.session import open_world

    output = Output(json)
    world = open_world(output, {})
    with account(world, target) as rented:
        done = call(world, rented, dry_run=dry_run)
    lines = [f"gone: pod {each['pod']}" for each in done["ended"]]
    lines += [f"would end: pod {pod}" for pod in done["would_end"]]
    lines += [f"secret: {name}" for name in done["secrets"]]
    output.result(done, lines or [f"nothing to end; {len(done['left'])} pods within their time"])
    return 0
