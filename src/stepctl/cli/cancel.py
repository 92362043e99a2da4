"""``stepctl train cancel RUN``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from stepctl.cli.options import Json, Run, Timeout


def cancel(
    run: Run,
    timeout: Timeout = None,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Close the run though its machine cannot be reached for good.")
    ] = False,
    json: Json = False,
) -> int:
    """End the run without saving; what is committed stays. Exit 0 when it has ended."""
    from stepctl.calls.stop import cancel as call
    from stepctl.cli.ending import end

    return end(partial(call, abandon=abandon), run, timeout, json)
