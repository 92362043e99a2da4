"""How a run on another machine ended: what it saved comes home first, and what is in the bucket then counts."""

from __future__ import annotations

from collections.abc import Callable

from stepctl.base.errors import StepctlError
from stepctl.calls.away import commit_home, fetch_home
from stepctl.calls.reporting import (
    read_events,
    read_result,
    report_of,
    train_again,
    with_checkpoint,
    with_events,
    with_reason,
    with_result,
)
from stepctl.calls.saved import saved_checkpoints
from stepctl.calls.world import World
from stepctl.jobs.directory import JobDir
from stepctl.jobs.events import Saved
from stepctl.jobs.result import JobResult
from stepctl.lineage.store import lines_of, read_lineage
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report
from stepctl.targets.base import Machine, MachineGone

Died = Callable[[World, RunRecord, Machine, JobDir], Report]


def final_away(world: World, record: RunRecord, machine: Machine, died: Died) -> Report:
    """The report of a run whose job on another machine has ended.

    Args:
        died: makes the report of a job without a result, from the bucket.

    Raises:
        StepctlError: the machine cannot be reached, and may hold what is not here yet: nothing was let go.
    """
    job = world.store.job_dir(record.run)
    result = read_result(job) if job.result.exists() else None
    report = with_events(report_of(record), read_events(job))
    if result is not None:
        report = with_result(report, result)
    gone: MachineGone | None = None
    if _saved_there(record, result, job):
        try:
            fetch_home(world, record, machine)
        except MachineGone as error:
            gone = error
        try:
            commit_home(world, record)
        except (StepctlError, OSError) as error:
            return with_reason(_pending(world, record, report, error), job)
    if result is None:
        report = died(world, record, machine, job)
        return with_reason(_unfetched(world, record, report, gone) if gone else report, job)
    if result.state != "needs_trace" and (record.staged or result.state == "commit_pending"):
        report = _measured(world, record, report)
    return with_reason(report, job)


def _saved_there(record: RunRecord, result: JobResult | None, job: JobDir) -> bool:
    """Whether the machine may hold a checkpoint that is to be fetched: nothing is, for a cancel."""
    if result is None:
        return job.requested() != "cancel"
    return result.state == "commit_pending" or (record.staged and result.state not in ("needs_trace", "cancelled"))


def _pending(world: World, record: RunRecord, report: Report, error: StepctlError | OSError) -> Report:
    """Everything is here, and the bucket refuses it: the state is that of the newest checkpoint that is here."""
    here = saved_checkpoints(world.store.job_dir(record.run), record.lineage)
    if not here:
        raise error
    newest = here[-1].manifest
    with_checkpoint(report, newest.checkpoint, newest.step, newest.rows_done)
    report.state = "commit_pending"
    report.error = {
        "code": "commit_pending",
        "message": f"step {newest.step} is trained and saved here, but not in the bucket: {error}",
        "next": f"stepctl train attach {record.run}",
    }
    return report


def _measured(world: World, record: RunRecord, report: Report) -> Report:
    """Hold what the job says of its own saves against the bucket."""
    reached, said = report.checkpoint, report.state
    bucket = world.open(record.bucket)
    state = read_lineage(bucket, record.lineage)
    mine = lines_of(bucket, record.lineage, record.run)
    if not mine:
        report.checkpoint, report.losses = None, []
        report.global_step, report.rows_done = record.from_step, record.trace.rows_start
    else:
        newest = mine[-1]
        with_checkpoint(report, newest.checkpoint, newest.step, newest.rows_done)
        report.forked = newest not in state.ledger
    if said == "commit_pending" and report.checkpoint == reached:
        report.state = "done" if report.rows_done >= report.rows_total else "stopped"
        report.error = None
    if said in ("cancelled", "failed") or report.checkpoint == reached:
        return report
    what = f"the job ended on its machine with {reached}, and the machine is gone before that was fetched"
    return _lost(world, record, report, what)


def _unfetched(world: World, record: RunRecord, report: Report, gone: MachineGone) -> Report:
    """A machine is gone, and with it perhaps what was trained: when it had saved more, or its end was its own doing."""
    saved = [event.checkpoint for event in read_events(world.store.job_dir(record.run)) if isinstance(event, Saved)]
    if report.state != "failed" or not (gone.details.get("by") == "pod" or saved[-1:] not in ([], [report.checkpoint])):
        return report
    return _lost(world, record, report, f"{gone.message}, and what it trained after row {report.rows_done} with it")


def _lost(world: World, record: RunRecord, report: Report, what: str) -> Report:
    report.state = "lost_unretrieved"
    again = ("--key", record.key) if record.key else ("--continue",) if report.checkpoint else ()
    report.error = {
        "code": "lost_unretrieved",
        "message": f"{what}; the head is at step {report.global_step}",
        "next": train_again(world.loaded, record, *again),
    }
    return report
