"""``stepctl pod ssh``: a shell on a run's pod."""

from __future__ import annotations

import os
import shlex

from stepctl.cli.options import Json, Run
from stepctl.cli.output import Output


def ssh(run: Run, json: Json = False) -> int:
    """Open a shell on a run's pod, with the run's own key and its pinned host key; --json prints the command."""
    from stepctl.base.errors import StepctlError
    from stepctl.calls.pods import ssh_command
    from stepctl.cli.session import open_world

    output = Output(json)
    words = ssh_command(open_world(output, {}), run)
    if json:
        output.result({"command": words})
        return 0
    try:
        os.execvp(words[0], words)  # noqa: S606
    except OSError as error:
        raise StepctlError(f"ssh cannot be started: {error.strerror}", next=shlex.join(words)) from error
