"""What the commands about a trace begin with: settings, and files that are read piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepctl.calls.world import World
    from stepctl.cli.output import Output
    from stepctl.traces.rows import TraceSource


def open_judge(output: Output, given: dict[str, object]) -> World:
    """Load the settings; warnings go to stderr.

    Raises:
        UsageError: the settings are not in order.
    """
    from stepctl.cli.display import new_display
    from stepctl.cli.session import open_world

    world: World = open_world(output, given, new_display())
    return world


def sources(names: Sequence[str]) -> list[TraceSource]:
    """The files of those names, ``-`` for stdin.

    Raises:
        UsageError: one is missing, a folder, unreadable, or named twice.
    """
    from stepctl.calls.check import open_sources
    from stepctl.calls.request import STDIN
    from stepctl.traces.rows import Source

    return open_sources(names, Source(name=STDIN, data=sys.stdin.buffer.read()) if STDIN in names else None)
