"""What ``train stop`` and ``train cancel`` have in common: a call that ends a run, and saying how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.calls.world import World
    from stepctl.runs.report import Report


def end(call: Callable[[World, str, float | None], Report], run: str, timeout: float | None, json: bool) -> int:
    """Make the call while its run is shown; exit 0 when it has ended, however it ended."""
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
