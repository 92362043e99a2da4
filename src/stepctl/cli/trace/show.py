"""``stepctl trace show``: one row, exactly as the model will see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepctl.base.text import visible
from stepctl.cli.options import Bucket, Json, Lineage, MaxLength, Method, Model, Revision
from stepctl.cli.output import Output
from stepctl.cli.trace.opening import open_judge, sources

if TYPE_CHECKING:
    from stepctl.traces.one import Shown, ShownText


def show(
    trace: Annotated[str, typer.Argument(help="File of examples, - for stdin.", metavar="TRACE")],
    row: Annotated[int, typer.Option(help="Its line, or its number in a JSON array.", min=1, metavar="N")],
    method: Method = None,
    model: Model = None,
    revision: Revision = None,
    bucket: Bucket = None,
    lineage: Lineage = None,
    max_length: MaxLength = None,
    json: Json = False,
) -> int:
    """Show a row as the model will see it: control tokens too, what is supervised in colour or in brackets."""
    from stepctl.calls.check import show as call

    output = Output(json)
    world = open_judge(
        output,
        {
            "method": method,
            "model": model,
            "revision": revision,
            "bucket": bucket,
            "lineage": lineage,
            "train.max_length": max_length,
        },
    )
    (source,) = sources([trace])
    shown = call(world, source, row)
    output.result(_document(shown), _lines(shown))
    return 0


def _document(shown: Shown) -> dict[str, Any]:
    about: dict[str, Any] = {
        "file": shown.file,
        "format": shown.format,
        "row": shown.row,
        "line": shown.line,
        "kind": shown.kind,
        "template": shown.template,
        "cut": shown.cut,
        "warnings": shown.warnings,
    }
    if shown.desirable is not None:
        about["desirable"] = shown.desirable
    if list(shown.texts) == [""]:
        return about | _text(shown.texts[""])
    return about | {side: _text(text) for side, text in shown.texts.items()}


def _text(text: ShownText) -> dict[str, Any]:
    return {"text": text.text, "spans": text.spans, "token_ids": text.token_ids, "labels": text.labels}


def _lines(shown: Shown) -> Iterator[str]:
    colour = sys.stdout.isatty()
    how = "in green" if colour else "between ⟦ and ⟧"
    yield f"row {shown.row}, line {shown.line} of {visible(shown.file)} ({shown.format}): {shown.kind}"
    if shown.template is not None:
        yield f"template: {shown.template}"
    if shown.desirable is not None:
        yield f"label: {'desirable' if shown.desirable else 'undesirable'}"
    for side, text in shown.texts.items():
        count = f"{len(text.token_ids)} tokens, of which {text.supervised} are supervised, {how}"
        yield f"{side}: {count}" if side else count
        yield "".join(_marked(span.text, span.supervised, colour) for span in text.spans)
    if shown.cut:
        yield f"cut: {shown.cut} supervised tokens are lost to max_length"
    for each in shown.warnings:
        yield f"note: {each.message}"


def _marked(text: str, supervised: bool, colour: bool) -> str:
    if not supervised:
        return visible(text)
    return f"\x1b[32m{visible(text)}\x1b[0m" if colour else f"⟦{visible(text)}⟧"
