"""Asking before money is spent, and reading how long a person wants to keep something."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepctl.base.errors import UsageError
from stepctl.cli.output import Output, write_line

if TYPE_CHECKING:
    from stepctl.cli.display import Plain, Terminal

_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[smh])")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_SEC = 24 * 3600.0


def agree(output: Output, display: Plain | Terminal, lines: Sequence[str], *, yes: bool) -> bool:
    """Show the plan of what is rented; on a terminal ask, unless ``yes``. Without one the caps are the answer."""
    for line in lines:
        display.notice(line)
    if yes or output.json_mode or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    write_line(sys.stderr, "Rent it? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def seconds_of(text: str) -> float:
    """``90s``, ``30m`` or ``2h`` in seconds.

    Raises:
        UsageError: it is none of these, or longer than a day.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not 0 < seconds <= LONGEST_SEC:
        raise UsageError(f"a duration is a number with s, m or h, up to 24h; this is {text!r}", next="such as 30m")
    return seconds
