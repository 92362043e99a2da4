"""From a run's record, its events and its result to what ``train --json`` prints."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

import msgspec

from stepctl.base.errors import Exit, StepctlError
from stepctl.base.names import utc_now
from stepctl.config.load import Loaded
from stepctl.jobs.directory import JobDir
from stepctl.jobs.events import AnyEvent, Device, Evaluation, Progress, Warned, decode_events
from stepctl.jobs.result import RESULT_VERSION, JobResult
from stepctl.lineage.records import ROOT, LedgerLine
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report

EXITS = {
    "planned": Exit.DONE,
    "running": Exit.DONE,
    "done": Exit.DONE,
    "stopped": Exit.STOPPED,
    "cancelled": Exit.CANCELLED,
    "commit_pending": Exit.NOT_COMMITTED,
}


def train_again(loaded: Loaded, record: RunRecord, *words: str) -> str:
    """The command that trains a run's trace on its lineage, with more ``words`` and all that today's settings lack."""
    needed = {"lineage": record.lineage, "bucket": record.bucket}
    if record.from_step == 0:  # later ones are the lineage's
        needed |= {"method": record.method, "model": record.model}
    for name, value in needed.items():
        if loaded.sources[name] == "option" or getattr(loaded.settings, name) != value:
            words = (*words, f"--{name}", value)
    return shlex.join(["stepctl", "train", *record.trace.paths, *words])


def exit_code(report: Report) -> int:
    """The exit code that a report's state means."""
    code = EXITS.get(report.state, Exit.FAILED)
    if report.pod_alive and report.state != "running":
        return int(Exit.POD_ALIVE)
    if report.error and report.state in ("failed", "stopped", "lost_unretrieved"):
        code = Exit(report.error.get("exit_code", code))
    return int(Exit.CONFLICT if report.forked and code in (Exit.DONE, Exit.STOPPED) else code)


def checkpoint_or_none(parent: str) -> str | None:
    """``parent`` unless it is a root."""
    return None if parent == ROOT or parent.startswith(f"{ROOT}-") else parent


def report_of(record: RunRecord) -> Report:
    """The report of a run as far as its record goes: nothing is trained yet."""
    return Report(
        run=record.run,
        state="running" if record.state in ("created", "starting") else record.state,
        method=record.method,
        model=record.model,
        lineage=record.lineage,
        bucket=record.bucket,
        target=record.target,
        num_examples=record.trace.rows_total,
        rows_done=record.trace.rows_start,
        rows_total=record.trace.rows_total,
        grad_accum=record.settings.get("train", {}).get("grad_accum", 0),
        from_step=record.from_step,
        global_step=record.from_step,
        resumed_from=checkpoint_or_none(record.parent),
        key=record.key,
        trace_sha256=record.trace.sha256,
        warnings=list(record.warnings),
        error=record.error,
    )


def with_events(report: Report, events: list[AnyEvent]) -> Report:
    """Add what the events tell; enough for a run that could not write its result."""
    for event in events:
        match event:
            case Device():
                report.device, report.precision = event.device, event.precision
            case Progress():
                report.losses.append(event.loss)
                report.supervised_tokens += event.supervised_tokens
            case Evaluation(when="before"):
                report.eval_loss_before = event.loss
            case Evaluation():
                report.eval_loss = event.loss
            case Warned():
                report.warnings.append({"code": event.code, "message": event.message})
    return report


def with_result(report: Report, result: JobResult) -> Report:
    """Add the result: it has the last word."""
    report.state = result.state
    report.device, report.precision = result.device, result.precision
    report.losses, report.exact, report.forked = list(result.losses), result.exact, result.forked
    report.eval_loss, report.eval_loss_before = result.eval_loss, result.eval_loss_before
    report.global_step, report.rows_done = result.step, result.rows_done
    report.checkpoint, report.supervised_tokens = result.checkpoint, result.supervised_tokens
    report.timings_sec, report.error = result.timings_sec, result.error
    return report


_REASONS = {
    "deadline": (Exit.CAPPED, "the pod's deadline came"),
    "cost": (Exit.CAPPED, "the pod's cost cap came"),
    "stall": (Exit.FAILED, "the job said nothing for too long"),
}
"""What a pod's watchdog writes into ``control/reason`` before it asks for a save, and what that means."""


def with_reason(report: Report, job: JobDir) -> Report:
    """Add why the machine itself ended the job before its time, if it did."""
    word = job.reason.read_text(errors="replace").strip() if job.reason.exists() else ""
    if word not in _REASONS or report.state not in ("stopped", "failed", "lost_unretrieved"):
        return report
    code, text = _REASONS[word]
    report.ended_by = word
    if report.state == "lost_unretrieved" and report.error is not None:
        report.error |= {"message": f"{text}: {report.error['message']}", "exit_code": int(code)}
        return report
    saved = f"saved up to row {report.rows_done} of {report.rows_total}" if report.checkpoint else "nothing was saved"
    again = f"the same command with --key {report.key}" if report.key else "the same command with --continue"
    report.error = {
        "code": word,
        "message": f"{text}: {saved}",
        "next": f"raise the cap, then {again}" if code == Exit.CAPPED else again,
        "exit_code": int(code),
    }
    return report


def with_checkpoint(report: Report, checkpoint: str, step: int, rows_done: int) -> Report:
    """Cut a report down to what the newest committed checkpoint of the run holds."""
    report.checkpoint, report.global_step, report.rows_done = checkpoint, step, rows_done
    del report.losses[step - report.from_step :]
    return report


def close(report: Report, record: RunRecord) -> Report:
    """The derived fields: counts, the last loss, how long it took, the exit code."""
    report.steps_run = report.global_step - report.from_step
    report.losses = report.losses[: report.steps_run]
    report.loss = report.losses[-1] if report.losses else report.loss
    began = datetime.fromisoformat(record.created_at)
    report.elapsed_sec = round((utc_now() - began).total_seconds(), 3)
    report.exit_code = exit_code(report)
    return report


def replayed(report: Report, line: LedgerLine, earlier: RunRecord | None) -> Report:
    """The answer to a call that was made before: what it said then, as far as it is known here."""
    known: dict[str, Any] = (earlier.report or {}) if earlier else {}
    if known:
        report = msgspec.convert(known, Report)
        report.error = None
    report.run, report.state, report.replayed, report.forked = line.run, "done", True, False
    report.from_step, report.global_step = line.from_step, line.step
    report.rows_done, report.rows_total, report.num_examples = line.rows_done, line.rows_total, line.rows_total
    report.loss, report.checkpoint, report.trace_sha256 = line.loss, line.checkpoint, line.trace_sha256
    report.key = line.key
    report.exact = line.exact if line.exact is not None else report.exact
    report.steps_run = line.step - line.from_step
    report.exit_code = 0
    return report


def read_events(job: JobDir) -> list[AnyEvent]:
    """All events of a run so far."""
    return decode_events(job.events.read_bytes())[0] if job.events.exists() else []


def read_result(job: JobDir) -> JobResult:
    """The result of a job that ended.

    Raises:
        StepctlError: it is of a newer release, or damaged.
        OSError: it is not there.
    """
    data = job.result.read_bytes()
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if type(version) is int and version > RESULT_VERSION:
            raise StepctlError(
                f"{job.result} has version {version}, and this stepctl reads version {RESULT_VERSION}",
                safe="what the run saved and committed is as it was",
                next="install the release of stepctl that trained it, or a newer one, then repeat the command",
                code="result_version",
            )
        return msgspec.json.decode(data, type=JobResult)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StepctlError(
            f"{job.result} cannot be read: {error}",
            safe="what the run saved and committed is as it was",
            next=f"rm {shlex.quote(str(job.result))}, then repeat the command: the bucket tells how the run ended",
            code="damaged_result",
        ) from error
