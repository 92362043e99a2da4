"""``stepctl train cancel RUN``."""

from __future__ import annotations

from stepctl.cli.options import Json, Run, Timeout


def cancel(run: Run, timeout: Timeout = None, json: Json = False) -> int:
    """End the run without saving; what is committed stays. Exit 0 when it has ended."""
    from stepctl.calls.stop import cancel as call
    from stepctl.cli.ending import end

    return end(call, run, timeout, json)
