"""Bringing a run's record to what really happened. Any call may do it, after any crash."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.names import iso, utc_now
from stepctl.calls.away import is_away, let_go, machine_of, teller, with_pods
from stepctl.calls.homecoming import final_away
from stepctl.calls.reporting import (
    close,
    read_events,
    read_result,
    report_of,
    train_again,
    with_checkpoint,
    with_events,
    with_result,
)
from stepctl.calls.saved import commit_saved
from stepctl.calls.unreadable import pass_over
from stepctl.calls.world import World
from stepctl.jobs.directory import JobDir
from stepctl.lineage.head import DAMAGE
from stepctl.lineage.store import lines_of, read_lineage
from stepctl.runs.process import alive
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report
from stepctl.runs.store import RunStore
from stepctl.targets.base import Machine


def running(store: RunStore, record: RunRecord) -> bool:
    """Whether the run may still go on by itself. Changes nothing, and asks no other machine: a job there counts as
    running until its end is known here.
    """
    if record.state not in UNFINISHED or store.job_dir(record.run).exit_code.exists():
        return False
    if record.job is None:
        return alive(record.client)
    return is_away(record) or machine_of(store, record).alive()


def busy(store: RunStore, record: RunRecord) -> bool:
    """Whether somebody else sees to the run: it goes on here, or the process that began it follows it elsewhere."""
    if is_away(record):
        return record.state in UNFINISHED and alive(record.client)
    return running(store, record)


def unfinished(world: World, bucket: str, lineage: str, *, past_damage: bool = False) -> RunRecord | None:
    """The run of a lineage that still goes on; ended ones get their final state, and what they saved is committed.

    The caller holds the store's lock. One on another machine is returned unless it has its final state: what that
    takes may take long.

    Args:
        past_damage: pass over an ended run whose state a damaged head hides; what it saved is in the bucket then.

    Raises:
        StepctlError, OSError: as :func:`settle`, :func:`commit_pending` and :func:`pass_over`.
    """
    records, unreadable = world.store.unfinished(bucket, lineage)
    for each in unreadable:
        world.listener.notice(f"warning: {pass_over(world.store, each, bucket, lineage)}")
    for record in records:
        if running(world.store, record) or (is_away(record) and record.state in UNFINISHED):
            return record
        try:
            _bring_to_end(world, record)
        except StepctlError as error:
            if not past_damage or error.code not in DAMAGE:
                raise
            world.listener.notice(f"run {record.run} had ended; the next call gives it its final state")
    return None


def _bring_to_end(world: World, record: RunRecord) -> None:
    if record.state != "commit_pending":
        record = settle(world, record)
        world.listener.notice(f"run {record.run} had ended without a word; it is now: {record.state}")
    if record.state == "commit_pending":
        commit_pending(world, record)
        world.listener.notice(f"run {record.run}: its saved checkpoint is committed now")


def settle(world: World, record: RunRecord, machine: Machine | None = None, *, ended: bool = False) -> RunRecord:
    """Give an ended run its final state; one that still runs is returned as it is.

    Args:
        machine: the connection that followed the job.
        ended: the job was seen to end.

    Raises:
        StepctlError: the bucket cannot be read, and so it is not known what was committed; or the machine cannot be
            reached, and what it saved is not here yet.
    """
    store = world.store
    if record.state not in UNFINISHED or (not ended and running(store, record)):
        return record
    machine = machine or machine_of(store, record, teller(world))
    if not is_away(record):
        return end_run(store, record, _final(world, record, machine))
    with store.ending(record.run):
        record = store.load(record.run)
        if record.state not in UNFINISHED:
            return record
        if record.job and _may_commit_unseen(store, record, machine):
            _end_first(world, record, machine)
            report = with_pods(final_away(world, record, machine, _died), store, record.run)
        else:
            report = final_away(world, record, machine, _died) if record.job else _needs_trace(record)
            let_go(world, record, machine, report)
        return end_run(store, record, report)


def _may_commit_unseen(store: RunStore, record: RunRecord, machine: Machine) -> bool:
    """Whether a job that was cancelled may still commit by itself: nobody saw its end, and nobody gets to it."""
    job = store.job_dir(record.run)
    return not record.staged and not job.has_ended and machine.lost and job.requested() == "cancel"


def _end_first(world: World, record: RunRecord, machine: Machine) -> None:
    """Let go of a machine before the bucket is asked what its job has committed."""
    report = report_of(record)
    report.state = "cancelled"
    let_go(world, record, machine, report)


def _final(world: World, record: RunRecord, machine: Machine) -> Report:
    job = world.store.job_dir(record.run)
    if job.result.exists():
        return with_result(with_events(report_of(record), read_events(job)), read_result(job))
    if record.job is None or not job.events.exists():
        how = machine.death()
        return _no_trainer(record, job, how) if how else _needs_trace(record)
    return _died(world, record, machine, job)


def abandon_run(world: World, record: RunRecord) -> RunRecord:
    """Close a run whose machine cannot be reached any more: what is committed counts, what was fetched is committed."""
    if record.state not in UNFINISHED:
        return record
    machine = machine_of(world.store, record, teller(world))
    world.store.job_dir(record.run).request("cancel")
    with world.store.bringing(record.run):
        commit_saved(world, record)
    if record.staged:
        report = _died(world, record, machine, world.store.job_dir(record.run))
        let_go(world, record, machine, report)
    else:
        _end_first(world, record, machine)
        report = with_pods(_died(world, record, machine, world.store.job_dir(record.run)), world.store, record.run)
    return end_run(world.store, record, report)


def end_run(store: RunStore, record: RunRecord, report: Report) -> RunRecord:
    """Write the final state; what the job left for itself is removed.

    A record that another call changed since it was read is left as it is: that call settled the run, or started it
    again.
    """
    judged, current = _moment(record), True

    def change(record: RunRecord) -> None:
        nonlocal current
        current = _moment(record) == judged
        if not current:
            return
        close(report, record)
        record.state, record.error = report.state, report.error
        record.finished_at = iso(utc_now())
        data: dict[str, Any] = msgspec.to_builtins(report)
        record.report = data

    ended = store.update(record.run, change)
    if not current:
        return ended
    folder = store.folder(record.run)
    for leftover in ("restore", "init", "stage") + (() if report.state == "commit_pending" else ("out",)):
        shutil.rmtree(folder / leftover, ignore_errors=True)
    return ended


def _moment(record: RunRecord) -> tuple[object, ...]:
    return record.state, record.client, record.job


def _needs_trace(record: RunRecord) -> Report:
    report = report_of(record)
    report.state = "needs_trace"
    report.error = {
        "code": "needs_trace",
        "message": "the call ended before its examples reached the trainer; nothing was trained",
        "next": f"stepctl train attach {record.run}",
    }
    return report


def _no_trainer(record: RunRecord, job: JobDir, how: str) -> Report:
    """The trainer ended before it could say anything: its last words are in the log, and hold no example."""
    report = report_of(record)
    report.state = "failed"
    lines = job.log.read_text(errors="replace").strip().splitlines() if job.log.exists() else []
    report.error = {
        "code": "no_trainer",
        "message": f"the trainer did not start: {lines[-1] if lines else how}; nothing was trained",
        "next": f"stepctl doctor (log: stepctl runs logs {record.run})",
    }
    return report


def _died(world: World, record: RunRecord, machine: Machine, job: JobDir) -> Report:
    """The process is gone without a result: what is saved is committed, what is committed counts."""
    report = with_events(report_of(record), read_events(job))
    cancelled = job.requested() == "cancel"
    bucket = world.open(record.bucket)
    if not cancelled:
        commit_saved(world, record)
    state = read_lineage(bucket, record.lineage)
    mine = lines_of(bucket, record.lineage, record.run)
    newest = mine[-1] if mine else None
    if newest is not None:
        with_checkpoint(report, newest.checkpoint, newest.step, newest.rows_done)
        report.forked = newest not in state.ledger
    else:
        report.losses = []
    made = [i.manifest for i in state.checkpoints if i.manifest.checkpoint == report.checkpoint]
    report.exact = all(manifest.exact for manifest in made)
    if report.checkpoint and report.rows_done >= report.rows_total:
        report.state = "done"
        return report
    report.state = "cancelled" if cancelled else "failed"
    if not cancelled:
        report.error = _death(world, record, machine, report)
    return report


def _death(world: World, record: RunRecord, machine: Machine, report: Report) -> dict[str, Any]:
    how = machine.death() or "it was killed, or the machine went down"
    kept = f"rows up to {report.rows_done} of {report.rows_total} are committed" if report.checkpoint else ""
    again = ("--key", record.key) if record.key else ("--continue",) if report.checkpoint else ()
    return {
        "code": "job_died",
        "message": f"the trainer's process died: {how}; {kept or 'nothing of this call is committed'}, "
        f"and the head is at step {report.global_step}",
        "next": f"{train_again(world.loaded, record, *again)} (log: stepctl runs logs {record.run})",
    }


def commit_pending(world: World, record: RunRecord) -> RunRecord:
    """Commit what a run saved but could not commit.

    Raises:
        StepctlError, OSError: the bucket still refuses; the checkpoint stays here.
    """
    store = world.store
    if record.state != "commit_pending":  # another call committed it meanwhile
        return record
    report = msgspec.convert(record.report, Report)
    saved = commit_saved(world, record)
    if saved is None:
        report.state, report.checkpoint = "failed", None
        report.global_step, report.rows_done = record.from_step, record.trace.rows_start
        report.error = {
            "code": "saved_checkpoint_gone",
            "message": f"the checkpoint that run {record.run} saved here is gone or damaged; its steps are lost",
            "next": "stepctl status",
        }
        return end_run(store, record, report)
    manifest, report.forked = saved
    report.state = "done" if manifest.rows_done >= manifest.rows_total else "stopped"
    report.checkpoint, report.error = manifest.checkpoint, None
    return end_run(store, record, report)
