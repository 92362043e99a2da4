"""``stepctl try``: what the model says now."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from stepctl.base.errors import StepctlError
from stepctl.cli.options import Bucket, Json, Lineage, Model
from stepctl.cli.output import Output


def try_(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    base: Annotated[bool, typer.Option("--base", help="Ask the base model, without the adapter.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of the answer at most.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.", min=0)] = 0.0,
    bucket: Bucket = None,
    lineage: Lineage = None,
    model: Model = None,
    json: Json = False,
) -> int:
    """Ask the base model with the head's adapter, and print what it says."""
    from stepctl.cli.session import open_world
    from stepctl.lineage.store import fetch_checkpoint, read_lineage

    output = Output(json)
    world = open_world(output, {"bucket": bucket, "lineage": lineage, "model": model})
    settings, store = world.loaded.settings, world.bucket()
    state = read_lineage(store, settings.lineage)
    if state.head is None and not base:
        output.notice(f"lineage {settings.lineage} has no checkpoint yet: this is the base model")
    head = None if base else state.head
    with tempfile.TemporaryDirectory(prefix="stepctl-try-") as folder:
        adapter = None
        if head is not None:
            adapter = str(Path(folder) / "adapter")
            fetch_checkpoint(store, settings.lineage, head.checkpoint, state.head_sha256, Path(adapter))
        given = "model" in world.loaded.given
        known = state.head.identity if state.head and not given else None
        source = known.model if known else settings.model
        answer = _ask(
            world.loaded.hf_token,
            _python(world),
            source,
            _revision(known, settings.revision),
            {
                "prompt": prompt,
                "adapter": adapter,
                "max_new_tokens": max_new_tokens,
                "temperature": temperature,
                "device": settings.train.device,
                "gpu_ids": settings.train.gpu_ids,
                "precision": settings.train.precision,
            },
        )
    document = {**answer, "model": source, "checkpoint": head.checkpoint if head else None}
    output.result(document, [answer["text"]])
    return 0


def _python(world: Any) -> str | None:
    settings = world.loaded.settings
    python: str | None = settings.targets[settings.target].python
    return python


def _revision(known: Any, asked: str | None) -> str | None:
    revision: str | None = known.revision if known else asked
    return None if revision is not None and revision.startswith("files:") else revision


def _ask(
    token: str | None, python: str | None, source: str, revision: str | None, more: dict[str, Any]
) -> dict[str, Any]:
    import msgspec

    from stepctl.targets.local import run_helper

    request = {"model": {"source": source, "revision": revision}, "hf_token": token, **more}
    answer: dict[str, Any] = msgspec.json.decode(run_helper("complete", msgspec.json.encode(request), python))
    if "error" in answer:
        raise StepctlError(answer["error"]["message"], next=answer["error"]["next"], code="try_failed")
    return answer
