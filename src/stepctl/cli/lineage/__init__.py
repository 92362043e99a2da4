"""``stepctl lineage``: looking after a lineage. One command, one file."""

from __future__ import annotations

import typer

from stepctl.cli.lineage import forks, log, ls, pull, rollback, use, verify

app = typer.Typer(
    help="Look after a lineage: what it holds, what was trained, which checkpoint is the head.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command("ls")(ls.ls)
app.command("log")(log.log)
app.command("forks")(forks.forks)
app.command("rollback")(rollback.rollback)
app.command("use")(use.use)
app.command("pull")(pull.pull)
app.command("verify")(verify.verify)
