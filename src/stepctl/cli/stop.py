"""``stepctl train stop RUN``."""

from __future__ import annotations

from stepctl.cli.options import Json, Run, Timeout
from stepctl.cli.output import Output


def stop(run: Run, timeout: Timeout = None, json: Json = False) -> int:
    """Save after the step at hand and end the run; exit 0 when it has ended."""
    from stepctl.calls.stop import stop as call
    from stepctl.cli.display import new_display
    from stepctl.cli.results import ended
    from stepctl.cli.session import catch_interrupts, open_world

    output, display = Output(json), new_display()
    world = open_world(output, {}, display)
    catch_interrupts(world.interrupts)
    try:
        report = call(world, run, timeout)
    finally:
        display.close()
    return ended(output, report)
