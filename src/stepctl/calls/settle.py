"""Bringing a run's record to what really happened. Any call may do it, after any crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.names import iso, utc_now
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
from stepctl.calls.unreadable import pass_over
from stepctl.calls.world import World
from stepctl.jobs.directory import JobDir
from stepctl.lineage.head import DAMAGE
from stepctl.lineage.records import Manifest
from stepctl.lineage.store import (
    check_folder,
    clean_leftovers,
    commit,
    decode_manifest,
    lines_of,
    prune,
    read_lineage,
)
from stepctl.runs.process import alive
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report
from stepctl.runs.store import RunStore
from stepctl.targets.base import Machine
from stepctl.targets.open import open_machine


def machine_of(store: RunStore, record: RunRecord) -> Machine:
    """A connection to the run's job, from what the record holds: today's settings do not matter."""
    kind = str(record.target_options.get("kind", "local"))
    return open_machine(kind, record.target_options, store.job_dir(record.run), record.run, record.job)


def running(store: RunStore, record: RunRecord) -> bool:
    """Whether the run may still go on by itself. Changes nothing."""
    if record.state not in UNFINISHED or store.job_dir(record.run).exit_code.exists():
        return False
    return machine_of(store, record).alive() if record.job else alive(record.client)


def unfinished(world: World, bucket: str, lineage: str, *, past_damage: bool = False) -> RunRecord | None:
    """The run of a lineage that still goes on; ended ones get their final state, and what they saved is committed.

    The caller holds the store's lock.

    Args:
        past_damage: pass over an ended run whose state a damaged head hides; what it saved is in the bucket then.

    Raises:
        StepctlError, OSError: as :func:`settle`, :func:`commit_pending` and :func:`pass_over`.
    """
    records, unreadable = world.store.unfinished(bucket, lineage)
    for each in unreadable:
        world.listener.notice(f"warning: {pass_over(world.store, each, bucket, lineage)}")
    for record in records:
        if running(world.store, record):
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


def settle(world: World, record: RunRecord, machine: Machine | None = None) -> RunRecord:
    """Give an ended run its final state; one that still runs is returned as it is.

    Raises:
        StepctlError: the bucket cannot be read, and so it is not known what was committed.
    """
    store, job = world.store, world.store.job_dir(record.run)
    machine = machine or machine_of(store, record)
    if record.state not in UNFINISHED or running(store, record):
        return record
    if job.result.exists():
        result = read_result(job)
        return end_run(store, record, with_result(with_events(report_of(record), read_events(job)), result))
    if record.job is None or not job.events.exists():
        how = machine.death()
        return end_run(store, record, _no_trainer(record, job, how) if how else _needs_trace(record))
    return end_run(store, record, _died(world, record, machine, job))


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
    for leftover in ("restore", "init") + (() if report.state == "commit_pending" else ("out",)):
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


def saved_checkpoint(job: JobDir, lineage: str) -> tuple[Path, Manifest] | None:
    """The checkpoint that the job saved whole but has not committed, verified."""
    for folder in sorted(job.out.glob("*"), reverse=True):
        try:
            manifest = decode_manifest((folder / "manifest.json").read_bytes(), lineage, folder.name)
            check_folder(folder, manifest)
        except (OSError, StepctlError):
            continue
        return folder, manifest
    return None


def _died(world: World, record: RunRecord, machine: Machine, job: JobDir) -> Report:
    """The process is gone without a result: what is saved is committed, what is committed counts."""
    report = with_events(report_of(record), read_events(job))
    cancelled = job.requested() == "cancel"
    bucket = world.open(record.bucket)
    saved = None if cancelled else saved_checkpoint(job, record.lineage)
    if saved is not None:
        # When the head has moved meanwhile this makes a fork: the work is kept all the same.
        commit_folder(world, record, *saved)
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


def commit_folder(world: World, record: RunRecord, folder: Path, manifest: Manifest) -> bool:
    """Commit what a job saved; says whether it became a fork."""
    bucket = world.open(record.bucket)
    done = commit(bucket, folder, manifest, choose_root=record.new_root)
    prune(bucket, record.lineage, record.settings.get("keep_checkpoints", 3))
    clean_leftovers(bucket, record.lineage, record.run, utc_now())
    return done.forked


def commit_pending(world: World, record: RunRecord) -> RunRecord:
    """Commit what a run saved but could not commit.

    Raises:
        StepctlError, OSError: the bucket still refuses; the checkpoint stays here.
    """
    store = world.store
    if record.state != "commit_pending":  # another call committed it meanwhile
        return record
    saved = saved_checkpoint(store.job_dir(record.run), record.lineage)
    report = msgspec.convert(record.report, Report)
    if saved is None:
        report.state, report.checkpoint = "failed", None
        report.global_step, report.rows_done = record.from_step, record.trace.rows_start
        report.error = {
            "code": "saved_checkpoint_gone",
            "message": f"the checkpoint that run {record.run} saved here is gone or damaged; its steps are lost",
            "next": "stepctl status",
        }
        return end_run(store, record, report)
    folder, manifest = saved
    report.forked = commit_folder(world, record, folder, manifest)
    report.state = "done" if manifest.rows_done >= manifest.rows_total else "stopped"
    report.checkpoint, report.error = manifest.checkpoint, None
    return end_run(store, record, report)
