"""``stepctl train stop RUN``."""

from __future__ import annotations

from stepctl.cli.options import Json, Run, Timeout


def stop(run: Run, timeout: Timeout = None, json: Json = False) -> int:
    """Save after the step at hand and end the run; exit 0 when it has ended."""
    from stepctl.calls.stop import stop as call
    from stepctl.cli.ending import end

    return end(call, run, timeout, json)
