"""The entry point: the app, and the one place where an exception becomes a message and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer._click.exceptions import ClickException, NoArgsIsHelpError

from stepctl import __version__
from stepctl.base.errors import UsageError
from stepctl.cli import config, doctor, init, lineage, pod, runs, status, trace, train, try_

app = typer.Typer(
    name="stepctl",
    help="Train a language model a few optimizer steps per call, and never lose or repeat one.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it and exit.")
    ] = False,
) -> None:
    pass


app.command("init")(init.init)
app.add_typer(train.app, name="train")
app.add_typer(trace.app, name="trace")
app.command("status")(status.status)
app.add_typer(runs.app, name="runs")
app.add_typer(pod.app, name="pod")
app.add_typer(lineage.app, name="lineage")
app.command("try")(try_.try_)
app.add_typer(config.app, name="config")
app.command("doctor")(doctor.doctor)


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    from stepctl.cli.errors import report

    json_mode = "--json" in arguments
    try:
        code = app(arguments, prog_name="stepctl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except NoArgsIsHelpError as error:
        error.show()
        return 2
    except ClickException as error:
        return report(_usage(error), json_mode)
    except typer.Abort:
        return report(KeyboardInterrupt(), json_mode)
    except BaseException as error:  # noqa: BLE001 - what is not known is reported as a bug, without a traceback
        return report(error, json_mode)


def _usage(error: ClickException) -> UsageError:
    ctx = getattr(error, "ctx", None)
    return UsageError(error.format_message(), next=f"{ctx.command_path.strip()} --help" if ctx else "stepctl --help")


def main() -> None:
    """The ``stepctl`` command."""
    sys.exit(run(sys.argv[1:]))
