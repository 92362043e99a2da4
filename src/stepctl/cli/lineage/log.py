"""``stepctl lineage log``: what was trained, run by run, and what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.lineage.store import ChoiceEntry, RunEntry, View

_DIGEST, _MINUTE, _NAMED = 12, len("2026-11-30T04:15"), 10


def log(
    every: Annotated[bool, typer.Option("--all", help="Also runs that are not part of the head.")] = False,
    bucket: Bucket = None,
    lineage: Lineage = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Print every run of the head's ancestry, oldest first: steps, rows, loss, trace, key, changed settings."""
    from stepctl.cli.session import open_world
    from stepctl.lineage.store import Log, history, look

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model})
    settings = world.loaded.settings
    view = look(world.bucket(), settings.lineage)
    entries = history(view, every=every)
    problem, head = view.problem, view.head
    document = Log(
        lineage=settings.lineage,
        bucket=settings.bucket,
        head=head.name if head else None,
        step=head.step if head else 0,
        identity=head.manifest.identity if head and head.manifest else None,
        problem=problem.message if problem else None,
        notes=view.walk.notes,
        entries=entries,
    )
    output.result(document, _lines(view, entries, settings.bucket))
    if problem is not None:
        output.warning(problem.message)
        output.notice(f"next: {problem.next}")
    return 0


def _lines(view: View, entries: list[RunEntry | ChoiceEntry], bucket: str) -> Iterator[str]:
    from stepctl.lineage.store import RunEntry

    head = view.head
    yield f"lineage {view.tree.lineage} in {bucket}"
    yield f"head: {head.name} at step {head.step}" if head else "no checkpoint yet"
    if any(isinstance(entry, RunEntry) for entry in entries):
        yield _row("run", "steps", "rows", "loss", "trace", "key")
    for entry in entries:
        yield from run_lines(entry) if isinstance(entry, RunEntry) else _choice_lines(entry)
    if view.problem is not None:
        names = sorted(view.tree.complete, reverse=True)[:_NAMED]
        yield f"complete checkpoints, newest first: {', '.join(names) or 'none'}"
    for note in view.walk.notes:
        yield f"note: {note}"


def run_lines(entry: RunEntry) -> Iterator[str]:
    """A run as a row, and below it what is special about it."""
    steps = f"{entry.from_step} -> {entry.step}"
    rows = f"{entry.rows_done} of {entry.rows_total}" if entry.rows_done is not None else "-"
    loss = f"{entry.loss:.4f}" if entry.loss is not None else "-"
    trace = (entry.trace_sha256 or "-")[:_DIGEST]
    yield _row(entry.run, steps, rows, loss, trace, entry.key or "")
    if not entry.on_path:
        kept = f"; kept: {', '.join(entry.stored)}" if entry.stored else ""
        yield f"    not part of the head{kept}"
    changed = [_changed(change.name, change.before, change.after) for change in entry.changed or []]
    if entry.exact is False:
        changed.append("exact: no")
    if changed:
        yield f"    {', '.join(changed)}"
    if entry.problem is not None:
        yield f"    damaged: {entry.problem}"


def _changed(name: str, before: Any, after: Any) -> str:
    return f"{name.removeprefix('versions.')} {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _choice_lines(entry: ChoiceEntry) -> Iterator[str]:
    if entry.at is None:
        yield f"choice {entry.number}: it cannot be read"
        return
    yield f"{entry.reason}: {'a new start, ' if entry.reason == 'fresh' else ''}{entry.at}, {_when(entry.created_at)}"
    if entry.left and entry.reason != "fresh":
        yield f"    away from {entry.left}"


def _row(run: str, steps: str, rows: str, loss: str, trace: str, key: str) -> str:
    """80 columns with a short key. The run's name tells when it was."""
    return f"{run:<25} {steps:<12} {rows:<9} {loss:<7} {trace:<{_DIGEST}} {key}".rstrip()


def _when(moment: str | None) -> str:
    return (moment or "-")[:_MINUTE].replace("T", " ")
