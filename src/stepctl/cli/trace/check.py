"""``stepctl trace check``: every row of a trace, judged as ``train`` does first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepctl.base.errors import Exit
from stepctl.base.text import visible
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
from stepctl.cli.trace.opening import open_judge, sources

if TYPE_CHECKING:
    from stepctl.calls.check import Checked

_BAR = 40
_TOLD = 20


def check(
    traces: Annotated[list[str], typer.Argument(help="Files of examples, - for stdin.", metavar="TRACE...")],
    method: Method = None,
    model: Model = None,
    revision: Revision = None,
    bucket: Bucket = None,
    lineage: Lineage = None,
    max_length: MaxLength = None,
    grad_accum: GradAccum = None,
    on_long: OnLong = None,
    skip_bad_rows: SkipBadRows = False,
    json: Json = False,
) -> int:
    """Judge every row of TRACE as train would: what is bad and why, tokens, lengths, steps. Exit 3: it is refused."""
    from stepctl.calls.check import check as call

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
            "train.grad_accum": grad_accum,
            "train.on_long": on_long,
            "train.skip_bad_rows": skip_bad_rows or None,
        },
    )
    checked = call(world, sources(traces))
    document = _document(checked)
    if not json:
        for each in checked.warnings:
            if each.line is None:
                output.warning(each.message)
    output.result(document, _lines(checked))
    return int(document["exit_code"])


def _document(checked: Checked) -> dict[str, Any]:
    judged, settings = checked.judged, checked.settings
    return {
        "state": "refused" if checked.refused else "ok",
        "files": judged.files,
        "trace_sha256": judged.sha256,
        "method": settings.method,
        "model": settings.model,
        "template": checked.template,
        "max_length": settings.train.max_length,
        "on_long": settings.train.on_long,
        "grad_accum": settings.train.grad_accum,
        "rows_total": judged.total,
        "rows_kept": judged.kept,
        "rows_skipped": judged.skipped,
        "rows_dropped": judged.dropped,
        "bad": judged.bad,
        "warnings": checked.warnings,
        "kinds": judged.kinds,
        "counts": judged.counts,
        "duplicates": judged.duplicates,
        "same_prompt": judged.same_prompt,
        "truncated": judged.truncated,
        "lost_tokens": judged.lost_tokens,
        "tokens": judged.tokens,
        "supervised_tokens": judged.supervised_tokens,
        "longest": judged.longest,
        "lengths": judged.lengths,
        "steps": checked.steps,
        "step_sec": checked.step_sec,
        "forecast_sec": checked.forecast_sec,
        "exit_code": int(Exit.TRACE_REFUSED if checked.refused else Exit.DONE),
    }


def _lines(checked: Checked) -> Iterator[str]:
    from stepctl.calls.prepare import bad_lines
    from stepctl.cli.display import duration

    judged, settings = checked.judged, checked.settings
    for each in judged.files:
        yield f"{visible(each.name)}: {each.format}, {_rows(each.rows)}"
    if kinds := ", ".join(f"{count:,} {kind}" for kind, count in judged.kinds.items()):
        yield f"shapes: {kinds}; method {settings.method}"
    if judged.bad:
        count = len({(bad.file, bad.line) for bad in judged.bad})
        yield f"bad: {_rows(count)}{'' if checked.refused else ', left out'}"
        yield from bad_lines(judged.bad)
    yield f"kept: {judged.kept} of {_rows(judged.total)}{f', {judged.dropped} too long' if judged.dropped else ''}"
    if judged.counts:
        yield f"labels: {', '.join(f'{count} {label}' for label, count in judged.counts.items())}"
    if judged.duplicates or judged.same_prompt:
        yield f"repeated: {judged.duplicates} the same, {judged.same_prompt} the same prompt with another answer"
    share = judged.supervised_tokens / judged.tokens if judged.tokens else 0
    yield f"tokens: {judged.tokens:,}, of which {judged.supervised_tokens:,} supervised ({share:.0%})"
    yield from _histogram(checked)
    if judged.truncated:
        lost = judged.lost_tokens / (judged.lost_tokens + judged.supervised_tokens)
        limit = settings.train.max_length
        yield f"cut: {_rows(judged.truncated)} to {limit} tokens; {lost:.1%} of the supervised tokens are lost"
    yield from _rowwise(checked)
    if checked.refused:
        yield "refused: train would train nothing"
        return
    yield f"steps: {checked.steps}, of {settings.train.grad_accum} rows each"
    if checked.forecast_sec is not None:
        each_step = f"{checked.step_sec:.2f} s a step in earlier runs"
        yield f"forecast: {duration(checked.forecast_sec)} of steps ({each_step})"


def _rowwise(checked: Checked) -> Iterator[str]:
    """Warnings of single rows; those that one line sums up are told by it."""
    summed = {each.code for each in checked.warnings if each.line is None}
    single = [each for each in checked.warnings if each.line is not None and each.code not in summed]
    for each in single[:_TOLD]:
        yield f"note: {each.file}, line {each.line}: {each.message}"
    if len(single) > _TOLD:
        yield f"note: ... and {len(single) - _TOLD} more"


def _histogram(checked: Checked) -> Iterator[str]:
    bins = checked.judged.lengths
    most = max((each.rows for each in bins), default=0)
    if not most:
        return
    yield "lengths in tokens:"
    for each in bins:
        bar = "#" * max(round(_BAR * each.rows / most), each.rows > 0)
        yield f"  up to {each.at_most:>7,}  {each.rows:>8,}  {bar}".rstrip()


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"
