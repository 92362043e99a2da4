"""``stepctl train``: make a call. Its verbs are in attach.py, stop.py and cancel.py."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.cli import attach, cancel, stop
from stepctl.cli.default_verb import DEFAULT, DefaultVerbGroup
from stepctl.cli.options import (
    Bucket,
    GradAccum,
    Json,
    Lineage,
    MaxLength,
    Method,
    Model,
    OnLong,
    Revision,
    SkipBadRows,
)
from stepctl.cli.output import Output

app = typer.Typer(
    cls=DefaultVerbGroup,
    help="Train on a file of examples: ceil(n / G) steps more. Verbs: attach, stop, cancel.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("attach")(attach.attach)
app.command("stop")(stop.stop)
app.command("cancel")(cancel.cancel)

_VERBS = """Verbs: train attach RUN follows a run again; train stop RUN saves and ends it; train cancel RUN ends it
without saving. A file that is named like a verb is ./attach."""


class Cancelled(StepctlError):
    """Ctrl-C before the run existed."""

    exit_code = Exit.CANCELLED
    code = "cancelled"


@app.command(DEFAULT, hidden=True, epilog=_VERBS)
def train(
    traces: Annotated[list[str], typer.Argument(help="Files of examples, - for stdin.", metavar="TRACE...")],
    target: Annotated[str | None, typer.Option(help="Where to train: local, or one of [targets].")] = None,
    method: Method = None,
    model: Model = None,
    revision: Revision = None,
    bucket: Bucket = None,
    lineage: Lineage = None,
    init_from: Annotated[
        str | None, typer.Option(help="Adapter a new lineage starts from: LINEAGE[@STEP] or a PEFT folder.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Train this trace once: a repeated call is answered.")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Train the rest of an unfinished trace.")] = False,
    expect_step: Annotated[int | None, typer.Option(help="Refuse unless the head is at this step.", min=0)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start the lineage anew at step 0.")] = False,
    held_out: Annotated[
        str | None, typer.Option("--eval", help="Held-out examples: their loss before and after.", metavar="FILE")
    ] = None,
    max_length: MaxLength = None,
    on_long: OnLong = None,
    skip_bad_rows: SkipBadRows = False,
    grad_accum: GradAccum = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the adapter's start and of dropout.")] = None,
    gpu_ids: Annotated[str | None, typer.Option(help="GPUs that may be used.", metavar="N,N,...")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; the run goes on.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Exit 4 when another run is not finished.")] = False,
    cold: Annotated[bool, typer.Option("--cold", help="Use no process kept from earlier calls.")] = False,
    keep_pod: Annotated[
        str | None, typer.Option(help="Keep the pod so long for the next call.", metavar="DURATION")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Rent without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; change nothing.")] = False,
    json: Json = False,
) -> int:
    """Train on TRACE: ceil(n / G) optimizer steps more, from where the last call ended."""
    from stepctl.calls.request import STDIN, TrainRequest, read_source, read_sources
    from stepctl.calls.train import train as call
    from stepctl.cli.agreeing import agree, seconds_of
    from stepctl.cli.display import new_display
    from stepctl.cli.plan import show_plan
    from stepctl.cli.results import finish
    from stepctl.cli.session import catch_interrupts, open_world

    output, display = Output(json), new_display()
    world = open_world(
        output,
        {
            "target": target,
            "method": method,
            "model": model,
            "revision": revision,
            "bucket": bucket,
            "lineage": lineage,
            "init_from": init_from,
            "train.max_length": max_length,
            "train.on_long": on_long,
            "train.skip_bad_rows": skip_bad_rows or None,
            "train.grad_accum": grad_accum,
            "train.learning_rate": learning_rate,
            "train.seed": seed,
            "train.gpu_ids": gpu_ids,
        },
        display,
    )
    catch_interrupts(world.interrupts)
    world.agree = partial(agree, output, display, yes=yes)
    _check(fresh, go_on, held_out, key)
    try:
        paths, sources = read_sources(traces, sys.stdin.buffer)
        request = TrainRequest(
            paths=paths,
            sources=sources,
            eval_path=str(Path(held_out).absolute()) if held_out else None,
            eval_source=read_source(held_out) if held_out and held_out != STDIN else None,
            key=key,
            go_on=go_on,
            fresh=fresh,
            expect_step=expect_step,
            detach=detach,
            no_wait=no_wait,
            keep_pod_sec=None if keep_pod is None else seconds_of(keep_pod),
        )
        if dry_run:
            return show_plan(output, world, request)
        report = call(world, request)
    except KeyboardInterrupt:
        raise Cancelled("cancelled before the run began", safe="nothing was trained") from None
    finally:
        display.close()
    return finish(output, report)


def _check(fresh: bool, go_on: bool, held_out: str | None, key: str | None) -> None:
    if fresh and go_on:
        raise UsageError("--fresh starts anew and --continue goes on: only one of them can be meant")
    if held_out == "-":
        raise UsageError("--eval reads a file, not stdin")
    if key is not None and (not key.strip() or len(key) > 256 or not key.isprintable()):
        raise UsageError("--key must be 1 to 256 printable characters")
