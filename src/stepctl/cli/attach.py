"""``stepctl train attach RUN``."""

from __future__ import annotations

from typing import Annotated

import typer

from stepctl.cli.options import Json, Run, Timeout
from stepctl.cli.output import Output


def attach(
    run: Run,
    trace: Annotated[
        list[str] | None, typer.Option(help="The run's examples, when it never got them.", metavar="FILE")
    ] = None,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Follow a run again, from any state; the exit code is that of the run. Ctrl-C leaves it alone (130)."""
    from stepctl.calls.attach import attach as call
    from stepctl.calls.restart import restart
    from stepctl.cli.display import new_display
    from stepctl.cli.results import finish
    from stepctl.cli.session import catch_interrupts, open_world

    output, display = Output(json), new_display()
    world = open_world(output, {}, display)
    catch_interrupts(world.interrupts)
    try:
        report = call(world, run, timeout)
        if report.state == "needs_trace" and report.run is not None:
            report = restart(world, world.store.load(report.run), trace, timeout)
    finally:
        display.close()
    return finish(output, report)
