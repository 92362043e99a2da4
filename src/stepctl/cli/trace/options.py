"""Options that decide how rows are judged: those of ``train`` that bear on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stepctl.calls.world import World
    from stepctl.cli.output import Output

Method = Annotated[str | None, typer.Option(help="Training method: sft, dpo or kto.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens of an example that are kept.")]
OnLong = Annotated[str | None, typer.Option(help="Longer examples: truncate, refuse or drop.", metavar="WHAT")]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave bad rows out instead of refusing the trace.")]


def open_judge(output: Output, given: dict[str, object]) -> World:
    """Load the settings; warnings go to stderr.

    Raises:
        UsageError: the settings are not in order.
    """
    from stepctl.cli.display import new_display
    from stepctl.cli.session import open_world

    world: World = open_world(output, given, new_display())
    return world
