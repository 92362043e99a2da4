"""``stepctl train cancel RUN``."""

from __future__ import annotations

from stepctl.cli.options import Json, Run, Timeout
from stepctl.cli.output import Output


def cancel(run: Run, timeout: Timeout = None, json: Json = False) -> int:
    """End the run without saving; what is committed stays. Exit 0 when it has ended."""
    from stepctl.calls.stop import cancel as call
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
