"""What ``--dry-run`` prints: the plan, with what the machine would make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.calls.away import target_of
from stepctl.cli.display import size
from stepctl.cli.output import Output
from stepctl.config.model import LocalTarget, RunpodTarget, SshTarget
from stepctl.models.memory import activations, estimate, parameters
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
    if not isinstance(target_of(prepared.settings), LocalTarget):
        return _show_away(output, world, prepared, report)
    gpus, reason = _place(report, prepared, world.loaded.hf_token)
    longest = prepared.judged.longest
    memory = _memory(report, prepared, gpus, prepared.judged.widest)
    document: dict[str, Any] = msgspec.to_builtins(report)
    document |= {
        "tokens": prepared.judged.tokens,
        "counts": prepared.judged.counts,
        "longest": longest,
        "memory_bytes": memory,
        "checkpoint_folder": f"{report.bucket}/{report.lineage}/checkpoints",
    }
    output.result(document, _lines(report, prepared, longest, memory, reason))
    return 0


def _show_away(output: Output, world: World, prepared: Prepared, report: Report) -> int:
    """The plan for another machine, which is not asked: what it is, and for a pod what it is to cost."""
    target = target_of(prepared.settings)
    lines = list(_call_lines(report, prepared))
    document: dict[str, Any] = msgspec.to_builtins(report)
    document |= {"tokens": prepared.judged.tokens, "counts": prepared.judged.counts, "rent": None}
    if isinstance(target, RunpodTarget):
        from stepctl.calls.spending import plan_lines, plan_pod

        plan = plan_pod(world, prepared, report.rows_total - report.rows_done)
        document["rent"] = plan.document()
        lines += plan_lines(plan)
    elif isinstance(target, SshTarget):
        lines.append(f"on: {target.host}, over SSH; it is not asked for a plan")
    output.result(document, lines)
    return 0


def _place(report: Report, prepared: Prepared, hf_token: str | None) -> tuple[dict[str, Any], str]:
    """Device and precision as the machine would choose them, and why; the choice is the trainer's own.

    Returns:
        The probe's GPUs that are to be used, by index, and the reason.

    Raises:
        StepctlError: what the settings ask for is not there, or does not hold the model.
    """
    from stepctl.targets.local import run_helper

    settings = prepared.settings
    asked = settings.train
    model = {
        "source": settings.model,
        "revision": prepared.model.commit,
        "trust_remote_code": settings.trust_remote_code,
    }
    ask = {
        "model": model,
        "lora": settings.lora,
        "device": asked.device,
        "precision": asked.precision,
        "gpu_ids": asked.gpu_ids,
        "max_length": asked.max_length,
        "method": settings.method,
        "hf_token": None if prepared.model.commit is None else hf_token,
    }
    target = settings.targets[settings.target]
    assert isinstance(target, LocalTarget)
    python = target.python
    probe = msgspec.json.decode(run_helper("probe", msgspec.json.encode(ask), python))
    refused = probe.get("refused") or probe.get("error")
    if refused:
        error = UsageError if refused.get("exit_code") == Exit.USAGE else StepctlError
        raise error(refused["message"], safe="nothing was changed", next=refused["next"], code=refused.get("code"))
    report.device, report.precision = probe["device"], probe["precision"]
    used = report.device.split(",") if report.device else []
    return {f"cuda:{g['index']}": g for g in probe["gpus"] if f"cuda:{g['index']}" in used}, probe["reason"]


def _memory(report: Report, prepared: Prepared, gpus: dict[str, Any], longest: int) -> int:
    """Bytes that the call is likely to take; a warning where the GPUs have less."""
    width = 2 if report.precision == "bf16" else 4
    if not gpus:
        return estimate(prepared.model.config, longest, width)
    memory = parameters(prepared.model.config) * width
    memory += activations(prepared.model.config, longest, width, scores=False)
    there = sum(gpu["memory_bytes"] for gpu in gpus.values())
    if memory > there:
        message = (
            f"about {size(memory)} of memory are needed for the longest row, and {report.device} has {size(there)}"
        )
        report.warnings.append({"code": "memory", "message": f"{message}: lower --max-length if it runs out"})
    return memory


def _lines(report: Report, prepared: Prepared, longest: int, memory: int, reason: str) -> Iterator[str]:
    *call, last = _call_lines(report, prepared)
    yield from call
    yield f"the longest row has {longest} tokens"
    yield f"on: {report.device} in {report.precision}, about {size(memory)} of memory ({reason})"
    yield last


def _call_lines(report: Report, prepared: Prepared) -> Iterator[str]:
    judged = prepared.judged
    rest = f" (rows 1 to {report.rows_done} are trained already)" if report.rows_done else ""
    yield f"plan: lineage {report.lineage}, step {report.from_step} -> {report.global_step}; nothing is changed"
    yield f"rows: {report.rows_total}{rest}, {report.grad_accum} a step: {report.steps_run} steps"
    if judged.counts:
        yield f"labels: {', '.join(f'{count} {label}' for label, count in judged.counts.items())}"
    yield f"tokens: {judged.tokens}, of which {judged.supervised_tokens} supervised"
    yield f"model: {report.model}, method {report.method}"
    start = f"the adapter of {prepared.settings.init_from}" if prepared.origin else "a new adapter"
    yield f"from: {report.resumed_from or start}"
    yield f"checkpoint to: {report.bucket}/{report.lineage}/checkpoints"
