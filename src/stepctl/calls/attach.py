"""Following a run again, from whatever state it is in."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from stepctl.base.errors import Exit, NotCommitted, StepctlError
from stepctl.calls.away import blaming_pods, bring_home, is_away, let_go, machine_of, teller, with_pods
from stepctl.calls.follow import POLL_SEC, follow
from stepctl.calls.reporting import close, exit_code, read_events, report_of, with_events
from stepctl.calls.settle import commit_pending, settle
from stepctl.calls.world import World
from stepctl.runs.pods import OPEN, PodFile
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report
from stepctl.targets.base import Machine

STALL_MINUTES = 30.0


def report_now(world: World, record: RunRecord) -> Report:
    """The report of a run as it is: the final one when it has ended."""
    if record.report is not None and record.state not in UNFINISHED:
        return msgspec.convert(record.report, Report)
    report = with_events(report_of(record), read_events(world.store.job_dir(record.run)))
    report.global_step = report.from_step + len(report.losses)
    return close(with_pods(report, world.store, record.run), record)


def wait_for_end(
    world: World,
    record: RunRecord,
    *,
    own: bool,
    machine: Machine | None = None,
    cancel: bool = False,
    stop: bool = False,
    timeout: float | None = None,
) -> Report:
    """Follow a run until it ends, and give it its final state.

    Args:
        own: this call started it: Ctrl-C stops it, instead of leaving it alone.
        machine: the connection that started it.
        cancel: end it without saving.
        stop: it was asked to save and end; on another machine that becomes a cancel when it takes too long.
        timeout: seconds to wait at most; then the report has exit code 124.
    """
    world.interrupts.armed = True
    began = world.now()
    while record.state in UNFINISHED and record.job is None:
        # Another call is starting it.
        settled = settle(world, record)
        if settled.state not in UNFINISHED:
            return report_now(world, settled)
        if world.interrupts.take():
            return _left(world, record, Exit.DETACHED)
        if timeout is not None and world.now() - began >= timeout:
            return _left(world, record, Exit.TIMED_OUT)
        world.wait(POLL_SEC)
        record = world.store.load(record.run)
    if record.state not in UNFINISHED:
        return report_now(world, record)
    with blaming_pods(world.store, record.run):
        machine = machine or machine_of(world.store, record, teller(world))
        rest = None if timeout is None else timeout - (world.now() - began)
        ending = follow(
            world,
            record,
            machine,
            own=own and not is_away(record),
            cancel=cancel,
            timeout=rest,
            patience=patience_of(record) if stop and is_away(record) else None,
            fetch=partial(bring_home, world, record, machine) if record.staged else None,
        )
        if ending != "ended":
            machine.close()
            tell_what_goes_on(world, record)
            return _left(world, record, Exit.DETACHED if ending == "detached" else Exit.TIMED_OUT)
        return report_now(world, settle(world, world.store.load(record.run), machine, ended=is_away(record)))


def patience_of(record: RunRecord) -> float:
    """Seconds without an event after which a stop of a job elsewhere becomes a cancel."""
    return 60 * float(record.target_options.get("stall_minutes", STALL_MINUTES))


def tell_what_goes_on(world: World, record: RunRecord) -> None:
    """Say what keeps running after this call has left, what it costs, and what ends it."""
    file = PodFile(world.store.folder(record.run))
    attempt = file.load().current if file.exists() else None
    if attempt is None or attempt.state not in OPEN:
        return
    price = attempt.price or attempt.listed_price
    rate = f" at ${price:.2f} an hour" if price else ""
    until = f"; it ends itself at {attempt.deadline_at[:19]} UTC at the latest" if attempt.deadline_at else ""
    grace = record.target_options.get("retrieve_grace_minutes", 0)
    stays = f", or {grace:g} minutes after the job, and what is not fetched by then is lost" if record.staged else ""
    world.listener.notice(f"pod {attempt.pod or attempt.name} goes on{rate}{until}{stays}")


def _commit(world: World, record: RunRecord) -> RunRecord:
    try:
        return commit_pending(world, record)
    except (OSError, StepctlError) as error:
        raise NotCommitted(
            f"the bucket still refuses the checkpoint of run {record.run}: {error}",
            safe=f"it is saved in {world.store.job_dir(record.run).out}",
            next=f"mend that, then: stepctl train attach {record.run}",
        ) from error


def reclaim(world: World, record: RunRecord) -> RunRecord:
    """End pods that an ended run left, delete a secret that it left, and put that into its report; a kept pod that
    nobody took gets its receipt.

    Raises:
        StepctlError: the provider cannot be asked.
    """
    file = PodFile(world.store.folder(record.run))
    if record.report is None or not file.exists():
        return record
    left = file.load()
    if left.open and not left.unended:
        from stepctl.calls.receipts import close_lapsed

        record, left = close_lapsed(world, record), file.load()
    if not left.unended and not left.secret_open:
        return record
    report = msgspec.convert(record.report, Report)
    let_go(world, record, machine_of(world.store, record, teller(world)), report)

    def change(record: RunRecord) -> None:
        report.exit_code = exit_code(report)
        data: dict[str, Any] = msgspec.to_builtins(report)
        record.report = data

    return world.store.update(record.run, change)


def _left(world: World, record: RunRecord, code: Exit) -> Report:
    report = report_now(world, record)
    report.exit_code = int(code)
    return report


def attach(world: World, run: str, timeout: float | None = None) -> Report:
    """Follow a run, or say how it ended; a checkpoint that waits for its commit is committed.

    A run that never got its examples is returned in its state ``needs_trace``: see ``calls/restart.py``.

    Raises:
        NotCommitted: the bucket still refuses.
        StepctlError: no such run.
    """
    record = world.store.load(world.store.find(run))
    if record.state not in UNFINISHED:
        record = reclaim(world, record)
    report = wait_for_end(world, record, own=False, timeout=timeout)
    if report.state == "commit_pending":
        record = _commit(world, world.store.load(record.run))
        if record.state != "failed":
            world.listener.notice("the checkpoint that was saved here is committed")
        return report_now(world, record)
    return report
