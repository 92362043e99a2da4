"""``stepctl pod``: what is rented. One command, one file."""

from __future__ import annotations

import typer

from stepctl.cli.pod import gpus, logs, ls, reap, rm, ssh

app = typer.Typer(
    help="See what is rented, what it costs and what guards it; end it.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.command("ls")(ls.ls)
app.command("rm")(rm.rm)
app.command("ssh")(ssh.ssh)
app.command("logs")(logs.logs)
app.command("reap")(reap.reap)
app.command("gpus")(gpus.gpus)
