"""``stepctl runs``: what was called, and how each call went."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from stepctl.cli.options import Json, Run
from stepctl.cli.output import Output, write_line

if TYPE_CHECKING:
    from stepctl.runs.record import RunRecord
    from stepctl.runs.store import RunStore

app = typer.Typer(
    help="List runs, show one, print its log.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def _store(output: Output) -> RunStore:
    from stepctl.cli.session import open_world

    return open_world(output, {}).store


def state_now(store: RunStore, record: RunRecord) -> str:
    """The state in words; a run whose process is gone is said to be dead, without changing its record."""
    from stepctl.calls.settle import running
    from stepctl.runs.record import UNFINISHED

    if record.state not in UNFINISHED or running(store, record):
        return record.state
    return "ended" if store.job_dir(record.run).exit_code.exists() else "died"


@app.command()
def ls(json: Json = False) -> int:
    """List the runs, oldest first."""
    output = Output(json)
    store = _store(output)
    records, unreadable = store.all()
    rows = [
        {
            "run": r.run,
            "state": state_now(store, r),
            "lineage": r.lineage,
            "from_step": r.from_step,
            "global_step": (r.report or {}).get("global_step", r.from_step),
            "loss": (r.report or {}).get("loss"),
            "created_at": r.created_at,
            "key": r.key,
        }
        for r in records
    ]
    for each in unreadable:
        output.warning(each.error.message)
    nothing = [] if unreadable else ["no runs yet"]
    document = {"runs": rows, "unreadable": [each.path for each in unreadable]}
    output.result(document, _table(rows) if rows else nothing)
    return 0


def _table(rows: list[dict[str, object]]) -> Iterator[str]:
    yield f"{'run':<26} {'state':<14} {'lineage':<12} {'steps':<12} {'loss':<8} key"
    for row in rows:
        loss = f"{row['loss']:.4f}" if isinstance(row["loss"], float) else "-"
        steps = f"{row['from_step']} -> {row['global_step']}"
        line = f"{row['run']:<26} {row['state']:<14} {row['lineage']:<12} {steps:<12} {loss:<8} {row['key'] or ''}"
        yield line.rstrip()


@app.command()
def show(run: Run, json: Json = False) -> int:
    """Show the record of a run."""
    import msgspec

    output = Output(json)
    store = _store(output)
    record = store.load(store.find(run))
    document = {**msgspec.to_builtins(record), "state_now": state_now(store, record)}
    lines = msgspec.json.format(msgspec.json.encode(document), indent=2).decode().splitlines()
    output.result(document, lines)
    if document["state_now"] in ("died", "ended"):
        write_line(sys.stderr, f"next: stepctl train attach {record.run} gives it its final state")
    return 0


@app.command()
def logs(run: Run, json: Json = False) -> int:
    """Print what the trainer of a run printed, and its events."""
    from stepctl.calls.reporting import read_events
    from stepctl.cli.display import event_line
    from stepctl.jobs.events import Failed

    output = Output(json)
    store = _store(output)
    job = store.job_dir(store.find(run))
    log = job.log.read_text(errors="replace") if job.log.exists() else ""
    events = read_events(job)
    lines = [event.message if isinstance(event, Failed) else event_line(event) for event in events]
    output.result({"log": log, "events": events}, [*(line for line in lines if line), *log.splitlines()])
    return 0
