"""``stepctl trace``: what a file of examples is to the model. One command, one file."""

from __future__ import annotations

import typer

from stepctl.cli.trace import check, show

app = typer.Typer(
    help="Judge a file of examples, and see rows as the model will see them; nothing is trained.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command("check")(check.check)
app.command("show")(show.show)
