"""What ``--dry-run`` prints: the plan, with what the machine would make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stepctl.base.errors import UsageError
from stepctl.cli.display import size
from stepctl.cli.output import Output
from stepctl.models.memory import estimate
from stepctl.runs.report import Report

if TYPE_CHECKING:
    from stepctl.calls.prepare import Prepared
    from stepctl.calls.request import TrainRequest
    from stepctl.calls.world import World


def show_plan(output: Output, world: World, request: TrainRequest) -> int:
    """Judge the call, ask the trainer's Python for device and precision, and print the plan."""
    from stepctl.calls.prepare import prepare
    from stepctl.calls.train import plan
    from stepctl.cli.results import finish

    prepared = prepare(world, request)
    report = plan(world, request, prepared)
    if report.replayed:
        return finish(output, report)
    _place(report, prepared)
    rows = prepared.judged.rows
    longest = max(len(text.input_ids) for row in rows for text in row.texts)
    memory = estimate(prepared.model.config, longest, 2 if report.precision == "bf16" else 4)
    document: dict[str, Any] = msgspec.to_builtins(report)
    document |= {
        "tokens": prepared.judged.tokens,
        "counts": prepared.judged.counts,
        "longest": longest,
        "memory_bytes": memory,
        "checkpoint_folder": f"{report.bucket}/{report.lineage}/checkpoints",
    }
    output.result(document, _lines(report, prepared, longest, memory))
    return 0


def _place(report: Report, prepared: Prepared) -> None:
    """Device and precision, as the settings and the machine have it."""
    from stepctl.targets.local import run_helper

    settings = prepared.settings
    probe = msgspec.json.decode(run_helper("probe", b"", settings.targets[settings.target].python))
    asked = settings.train
    if asked.device.startswith("cuda") and not probe["cuda_available"]:
        raise UsageError(
            f"the device {asked.device} is not on this machine",
            next="stepctl doctor shows the devices; the setting is train.device",
        )
    report.device = probe["device"] if asked.device == "auto" else asked.device
    report.precision = probe["precision"] if asked.precision == "auto" else asked.precision


def _lines(report: Report, prepared: Prepared, longest: int, memory: int) -> Iterator[str]:
    judged = prepared.judged
    rest = f" (rows 1 to {report.rows_done} are trained already)" if report.rows_done else ""
    yield f"plan: lineage {report.lineage}, step {report.from_step} -> {report.global_step}; nothing is changed"
    yield f"rows: {report.rows_total}{rest}, {report.grad_accum} a step: {report.steps_run} steps"
    if judged.counts:
        yield f"labels: {', '.join(f'{count} {label}' for label, count in judged.counts.items())}"
    yield f"tokens: {judged.tokens}, of which {judged.supervised_tokens} supervised; the longest row has {longest}"
    yield f"model: {report.model}, method {report.method}"
    yield f"from: {report.resumed_from or 'a new adapter'}"
    yield f"on: {report.device} in {report.precision}, about {size(memory)} of memory"
    yield f"checkpoint to: {report.bucket}/{report.lineage}/checkpoints"
