"""A run's report in lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from stepctl.cli.output import Output, write_line
from stepctl.runs.report import Report

_STATES = {
    "done": "done",
    "running": "running",
    "planned": "plan",
    "stopped": "stopped on request",
    "cancelled": "cancelled",
    "failed": "failed",
    "needs_trace": "not started",
    "lost_unretrieved": "lost: the pod ended before what it trained was fetched",
    "commit_pending": "saved here, not in the bucket yet",
}


_WHO = {"client": "this side", "pod": "itself", "provider": "the provider", "reaper": "stepctl pod reap", None: "?"}


def report_lines(report: Report) -> Iterator[str]:
    """What a person wants to know of a run."""
    steps = f"step {report.from_step} -> {report.global_step}"
    yield f"{_STATES[report.state]}: run {report.run}, lineage {report.lineage}, {steps}"
    if report.replayed:
        yield "nothing was trained: this was answered from an earlier run"
    if report.rows_total:
        yield f"rows: {report.rows_done} of {report.rows_total} are trained, {report.grad_accum} a step"
    if report.loss is not None:
        yield f"loss: {report.loss:.4f} at the last step"
    if report.eval_loss is not None and report.eval_loss_before is not None:
        yield f"held-out loss: {report.eval_loss_before:.4f} -> {report.eval_loss:.4f}"
    if report.checkpoint:
        yield f"checkpoint: {report.bucket}/{report.lineage}/checkpoints/{report.checkpoint}"
    yield from _receipts(report)


def _receipts(report: Report) -> Iterator[str]:
    """What was rented and what became of it."""
    from stepctl.cli.display import dollars, moment

    for pod in report.pods:
        if pod["pod"] is None:
            continue
        cost = "" if pod["spent_usd"] is None else f", {dollars(pod['spent_usd'])}"
        what = f"pod {pod['pod']} ({pod['gpu_type']})"
        if pod["state"] == "gone":
            yield f"receipt: {what} is gone since {moment(pod['gone_at'])}, ended by {_WHO[pod['ended_by']]}{cost}"
        elif pod["state"] == "kept":
            yield f"kept: {what} until {moment(pod['kept_until'])}"
        elif pod["state"] != "handed" and report.state != "running":
            yield f"MAY STILL BE ALIVE: {what}; stepctl pod rm {report.run}"


def finish(output: Output, report: Report) -> int:
    """Print a report and return the exit code. An error goes to stderr as well."""
    if report.error and report.state != "running":
        write_line(sys.stderr, f"error: {report.error['message']}")
        if report.error.get("next"):
            write_line(sys.stderr, f"next: {report.error['next']}")
    _may_cost(report)
    if report.forked:
        write_line(sys.stderr, f"error: {report.checkpoint} is a fork: another checkpoint is the head now")
        write_line(sys.stderr, "safe: the work is kept in the bucket")
        write_line(sys.stderr, "next: the same command again trains it on the head; stepctl lineage forks lists forks")
    if not _goes_on(report) and report.state == "stopped" and report.rows_done < report.rows_total:
        again = f"--key {report.key}" if report.key else "--continue"
        write_line(sys.stderr, f"next: the same command with {again} trains the other rows")
    output.result(report, report_lines(report))
    return report.exit_code


def _may_cost(report: Report) -> bool:
    """Whether a pod of an ended run may be alive; that is said."""
    if not report.pod_alive or report.state == "running":
        return False
    own = any(pod["state"] not in ("gone", "refused", "handed", "kept") for pod in report.pods)
    for run in [report.run, *report.pods_left] if own or not report.pods_left else report.pods_left:
        write_line(sys.stderr, f"still costs: a pod of run {run} may still be alive")
        write_line(sys.stderr, f"next: stepctl pod rm {run}")
    return True


def _goes_on(report: Report) -> bool:
    """Whether only the wait for the run is over; that is said."""
    why = {130: "detached", 124: "the time limit passed"}.get(report.exit_code)
    if why is None:
        return False
    write_line(sys.stderr, f"{why}: run {report.run} goes on; stepctl train attach {report.run}")
    return True


def ended(output: Output, report: Report) -> int:
    """For the verbs that end a run: they have done their work when it has ended, however it ended."""
    if not _goes_on(report) and not _may_cost(report):
        report.exit_code = 0
    output.result(report, report_lines(report))
    return report.exit_code
