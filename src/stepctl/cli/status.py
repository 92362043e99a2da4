"""``stepctl status``: a lineage at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output


def status(bucket: Bucket = None, lineage: Lineage = None, model: Model = None, json: Json = False) -> int:
    """Show a lineage: its head, the last loss, its checkpoints and their sizes, what is running."""
    from stepctl.calls.settle import running
    from stepctl.cli.runs import state_now
    from stepctl.cli.session import open_world
    from stepctl.lineage.store import read_lineage

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model})
    settings, store = world.loaded.settings, world.store
    state = read_lineage(world.bucket(), settings.lineage)
    waiting, unreadable = store.unfinished(settings.bucket, settings.lineage)
    for each in unreadable:
        output.warning(each.error.message)
    head = state.head
    document = {
        "lineage": settings.lineage,
        "bucket": settings.bucket,
        "head": head.checkpoint if head else None,
        "step": state.head_step,
        "loss": head.loss if head else None,
        "model": head.identity.model if head else settings.model,
        "method": head.identity.method if head else settings.method,
        "rows_done": head.rows_done if head else 0,
        "rows_total": head.rows_total if head else 0,
        "checkpoints": [
            {
                "checkpoint": info.manifest.checkpoint,
                "step": info.manifest.step,
                "bytes": info.bytes,
                "head": info.is_head,
                "on_path": info.on_path,
            }
            for info in state.checkpoints
        ],
        "incomplete": state.incomplete,
        "running": [r.run for r in waiting if running(store, r)],
        "commit_pending": [r.run for r in waiting if r.state == "commit_pending"],
        "ended": [r.run for r in waiting if state_now(store, r) == "ended"],
        "died": [r.run for r in waiting if state_now(store, r) == "died"],
        "unreadable": [each.path for each in unreadable],
        "notes": state.notes,
    }
    output.result(document, _lines(document))
    return 0


def _lines(document: dict[str, Any]) -> Iterator[str]:
    from stepctl.cli.display import size

    yield f"lineage {document['lineage']} in {document['bucket']}"
    if document["head"] is None:
        yield "no checkpoint yet: the next call starts at step 0"
    else:
        loss = f", last loss {document['loss']:.4f}" if document["loss"] is not None else ""
        yield f"head: {document['head']} at step {document['step']}{loss}"
        yield f"model: {document['model']}, method {document['method']}"
    if document["rows_done"] < document["rows_total"]:
        rows = f"{document['rows_done']} of {document['rows_total']} rows"
        yield f"its trace is unfinished ({rows}): --continue, or its --key, trains the rest"
    for each in document["checkpoints"]:
        mark = "head" if each["head"] else "" if each["on_path"] else "fork"
        yield f"  {each['checkpoint']}  step {each['step']}  {size(each['bytes'])}  {mark}".rstrip()
    for run in document["running"]:
        yield f"running: {run} (stepctl train attach {run})"
    for run in document["commit_pending"]:
        yield f"saved here, not committed: {run} (stepctl train attach {run})"
    for run in document["ended"]:
        yield f"ended: {run} (stepctl train attach {run} says how)"
    for run in document["died"]:
        yield f"died: {run} (stepctl train attach {run} settles it)"
    for note in document["notes"]:
        yield f"note: {note}"
