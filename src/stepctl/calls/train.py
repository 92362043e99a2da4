"""``stepctl train``: one call, in order. See DESIGN's nine steps in docs/architecture.md."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

from stepctl.base.errors import Exit, LineageConflict, StepctlError, UsageError
from stepctl.calls.attach import report_now, tell_what_goes_on, wait_for_end
from stepctl.calls.away import blaming_pods, is_away, let_go, machine_of, recorded_target, target_of, teller
from stepctl.calls.decide import Ask, Decision, decide
from stepctl.calls.follow import TimedOut
from stepctl.calls.leftovers import blaming_left, end_left, end_rival, refusal, rivals, with_left
from stepctl.calls.prepare import Prepared, prepare, read_state
from stepctl.calls.reporting import checkpoint_or_none, replayed, report_of
from stepctl.calls.request import TrainRequest
from stepctl.calls.settle import busy, end_run, unfinished
from stepctl.calls.start import make_record, method_warnings, start_job, steps_of
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget
from stepctl.lineage.identity import require_same
from stepctl.lineage.records import LedgerLine
from stepctl.lineage.store import LineageState
from stepctl.runs.pods import PodFile
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report
from stepctl.targets.base import GivenUp

WAIT_SEC = 0.5


@dataclass(frozen=True)
class Claimed:
    """The call is the lineage's only one now: its record is written."""

    record: RunRecord
    state: LineageState


def train(world: World, request: TrainRequest) -> Report:
    """Make a call and return how it went.

    Raises:
        StepctlError: any refusal; its exit code says which.
    """
    prepared = prepare(world, request)
    for line in prepared.inherited:
        world.listener.notice(line)
    for warning in prepared.warnings:
        where = f"{warning['file']}, line {warning['line']}: " if warning["line"] is not None else ""
        world.listener.notice(f"warning: {where}{warning['message']}")
    target = target_of(prepared.settings)
    if isinstance(target, RunpodTarget):
        from stepctl.calls.elsewhere import wait_elsewhere

        wait_elsewhere(world, request, prepared)
    elif request.keep_pod_sec is not None:
        raise UsageError(f"--keep-pod is for a target that rents pods, and {prepared.settings.target} is none")
    while True:
        outcome = _claim(world, request, prepared)
        if isinstance(outcome, RunRecord):
            outcome = _follow(world, request, outcome)
        if isinstance(outcome, Report):
            return with_left(world, outcome)
        if isinstance(outcome, Claimed):
            with blaming_left(world, outcome.record):
                return with_left(world, _run(world, request, prepared, outcome))
        # Another call moved the head: what is not given is taken from where it is now.
        prepared = prepare(world, request)


def _follow(world: World, request: TrainRequest, other: RunRecord) -> Report | None:
    """Follow the run that is this very call; None when it turns out that it never got its examples, and is over."""
    world.listener.notice(f"run {other.run} is this very call and is running: following it")
    if request.detach:
        return report_now(world, other)
    report = wait_for_end(world, other, own=False, timeout=request.timeout)
    if report.state != "needs_trace" or request.run is not None:
        return report
    world.interrupts.disarm()
    return None


def _run(world: World, request: TrainRequest, prepared: Prepared, claimed: Claimed) -> Report:
    record = claimed.record
    try:
        # Until a machine elsewhere is ready, Ctrl-C ends the call, also while a person is asked.
        if is_away(record):
            world.interrupts.disarm()
        world.interrupts.armed = not is_away(record)
        for warning in record.warnings[len(prepared.warnings) :]:
            world.listener.notice(f"warning: {warning['message']}")
        if not _agreed(world, prepared, record):
            return _given_up(world, record)
        record, machine = start_job(world, request, prepared, record, claimed.state)
    except Exception as error:  # noqa: BLE001 - whatever it is, a machine must not be left
        return _failed_to_start(world, record, error)
    except KeyboardInterrupt:
        return _given_up(world, record)
    if request.detach:
        machine.close()
        tell_what_goes_on(world, record)
        world.listener.notice(f"run {record.run} goes on by itself; follow it with: stepctl train attach {record.run}")
        return report_now(world, record)
    return wait_for_end(world, record, own=request.run is None, machine=machine, timeout=request.timeout)


def _agreed(world: World, prepared: Prepared, record: RunRecord) -> bool:
    """Show what is to be rented, note the forecast, and ask whether to go on."""
    if not isinstance(target_of(prepared.settings), RunpodTarget):
        return True
    from stepctl.calls.spending import plan_lines, plan_pod

    end_left(world)
    plan = plan_pod(world, prepared, record.trace.rows_total - record.trace.rows_start)

    def change(record: RunRecord) -> None:
        record.forecast = plan.document()
        record.target_options["need_gb"] = plan.need_gb

    record.forecast = world.store.update(record.run, change).forecast
    record.target_options["need_gb"] = plan.need_gb
    return world.agree(list(plan_lines(plan)))


def _given_up(world: World, record: RunRecord) -> Report:
    """Ctrl-C, or a cancel from elsewhere, before the job existed: the machine is let go, whatever else is pressed."""
    world.interrupts.armed = True
    record = world.store.load(record.run)
    got = not isinstance(recorded_target(record), RunpodTarget) or PodFile(world.store.folder(record.run)).exists()
    what = "cancelling: the machine is let go" if got else "cancelled: nothing was rented"
    world.listener.notice(f"{what}, and nothing was trained")
    report = report_of(record)
    report.state = "cancelled"
    let_go(world, record, machine_of(world.store, record, teller(world)), report)
    return report_now(world, end_run(world.store, record, report))


def _failed_to_start(world: World, record: RunRecord, error: Exception) -> Report:
    """Close the record as any other that ended; when that fails too, the error to tell is the first one.

    Raises:
        Exception: ``error``, unless it was a cancel; it says so when a pod may still be alive.
    """
    world.interrupts.armed = True
    if isinstance(error, GivenUp):
        return _given_up(world, record)
    with contextlib.suppress(StepctlError, OSError):
        record = world.store.load(record.run)
        report = report_of(record)
        report.state = "failed"
        # An unexpected error's own words may quote an example.
        known = isinstance(error, StepctlError | OSError)
        report.error = {"code": "system", "message": str(error) if known else type(error).__name__, "next": ""}
        if isinstance(error, StepctlError):
            report.error = {"code": error.code, "message": error.message, "next": error.next}
            report.error["exit_code"] = int(error.exit_code)
        if is_away(record):
            let_go(world, record, machine_of(world.store, record, teller(world)), report)
        end_run(world.store, record, report)
    with blaming_pods(world.store, record.run):
        raise error


def _claim(world: World, request: TrainRequest, prepared: Prepared) -> Claimed | Report | RunRecord | None:
    """Wait for the lineage's unfinished runs, decide on the head as it is then, and write the record.

    Pods that ended runs left are ended before the head is read: what they commit until then counts.
    None says that the head is another one than when the call was prepared.

    Raises:
        TimedOut: the wait took longer than the call was given.
        PodAlive: there is something to train, and a pod that may still train on the lineage cannot be ended.
    """
    told: str | None = None
    tried: set[str] = set()
    until = math.inf if request.timeout is None else world.now() + request.timeout
    while True:
        with world.store.lock():
            other = unfinished(world, prepared.settings.bucket, prepared.settings.lineage)
            left = rivals(world, prepared.settings.bucket, prepared.settings.lineage) if other is None else []
            new = [each for each in left if each.run not in tried]
            if other is None and not new:
                return _decide_and_record(world, request, prepared, left)
        for each in new:
            tried.add(each.run)
            end_rival(world, each)
        if other is None:
            continue
        if other.run == request.run:
            return other
        if request.key is not None and other.key == request.key:
            return _same_key(request, prepared, other)
        if request.no_wait:
            raise LineageConflict(
                f"run {other.run} of lineage {other.lineage!r} is not finished",
                safe="nothing was trained by this call",
                next=f"stepctl train attach {other.run}, or leave --no-wait out",
                code="busy",
                details={"run": other.run},
            )
        if other.run != told:
            told = other.run
            world.listener.notice(f"waiting for run {other.run}, which is training lineage {other.lineage!r}")
        # Only this one is looked at meanwhile: reading all records, of which there may be thousands, takes long.
        world.wait(WAIT_SEC)
        while busy(world.store, world.store.load(other.run)):
            if world.now() >= until:
                raise _waited_too_long(other)
            world.wait(WAIT_SEC)
        if is_away(other):
            _see_to(world, other, until)


def _see_to(world: World, other: RunRecord, until: float) -> None:
    """Bring a run on another machine to its end: nobody else may be there to do it.

    Raises:
        TimedOut: that takes longer than the call was given.
        KeyboardInterrupt: there was a Ctrl-C.
    """
    report = wait_for_end(
        world,
        world.store.load(other.run),
        own=False,
        timeout=None if until == math.inf else max(0.0, until - world.now()),
    )
    if report.exit_code == Exit.DETACHED:
        raise KeyboardInterrupt
    world.interrupts.disarm()
    if report.exit_code == Exit.TIMED_OUT:
        raise _waited_too_long(other)


def _waited_too_long(other: RunRecord) -> TimedOut:
    return TimedOut(
        f"the time limit passed, and run {other.run} of lineage {other.lineage!r} is not finished",
        safe="nothing was trained by this call",
        next="repeat the command later",
    )


def _same_key(request: TrainRequest, prepared: Prepared, other: RunRecord) -> RunRecord:
    if other.trace.sha256 != prepared.judged.sha256:
        raise LineageConflict(
            f"the key {request.key!r} is in use for another trace by run {other.run}",
            safe="nothing was trained by this call",
            next="give each trace its own --key",
            code="key_conflict",
            details={"key": request.key, "run": other.run},
        )
    return other


def _ask(request: TrainRequest, prepared: Prepared) -> Ask:
    return Ask(
        sha256=prepared.judged.sha256,
        key=request.key,
        go_on=request.go_on,
        fresh=request.fresh,
        expect_step=request.expect_step,
        rows_total=prepared.judged.kept,
        rows_sha256=prepared.judged.rows_sha256,
    )


def _decide_and_record(
    world: World, request: TrainRequest, prepared: Prepared, left: list[RunRecord]
) -> Claimed | Report | None:
    settings = prepared.settings
    state = read_state(prepared.bucket, settings.lineage, fresh=request.fresh, claim=True)
    for note in state.notes:
        world.listener.notice(f"warning: {note}")
    if request.run is not None:
        record = world.store.load(request.run)
        if record.state != "needs_trace":
            # Another call attached to it meanwhile, and it has ended.
            return report_now(world, record)
    decision = decide(_ask(request, prepared), state.ledger, settings.lineage, state.head_step)
    if decision.replay is not None:
        return _replay(world, prepared, decision.replay)
    if left:
        raise refusal(world, left[0])
    if decision.fresh != prepared.fresh or (not decision.fresh and state.parent != prepared.parent):
        return None
    if state.head is not None and not decision.fresh:
        require_same(settings.lineage, state.head.identity, prepared.identity)
    prepared.bucket.check_writable()
    target = target_of(settings)
    if isinstance(target, RunpodTarget):
        from stepctl.calls.spending import check_key

        check_key(target)
    return Claimed(make_record(world, request, prepared, decision, state), state)


def _base_report(world: World, prepared: Prepared, key: str | None) -> Report:
    settings = prepared.settings
    return Report(
        run=None,
        state="planned",
        method=settings.method,
        model=settings.model,
        lineage=settings.lineage,
        bucket=settings.bucket,
        target=settings.target,
        grad_accum=settings.train.grad_accum,
        num_examples=prepared.judged.kept,
        rows_total=prepared.judged.kept,
        trace_sha256=prepared.judged.sha256,
        supervised_tokens=prepared.judged.supervised_tokens,
        key=key,
        warnings=prepared.warnings,
    )


def _known(world: World, run: str) -> RunRecord | None:
    try:
        return world.store.load(run) if run in world.store.names() else None
    except StepctlError:  # what it would add is not worth a refusal
        return None


def _replay(world: World, prepared: Prepared, line: LedgerLine) -> Report:
    earlier = _known(world, line.run)
    world.listener.notice(f"nothing to train: run {line.run} trained this already, to step {line.step}")
    return replayed(_base_report(world, prepared, line.key), line, earlier)


def plan(world: World, request: TrainRequest, prepared: Prepared) -> Report:
    """What the call would do. Changes nothing."""
    settings = prepared.settings
    state = read_state(prepared.bucket, settings.lineage, fresh=request.fresh)
    decision: Decision = decide(_ask(request, prepared), state.ledger, settings.lineage, state.head_step)
    if decision.replay is not None:
        return _replay(world, prepared, decision.replay)
    report = _base_report(world, prepared, decision.key)
    fresh: dict[str, Any] = {"from_step": 0, "resumed_from": None}
    now = {"from_step": state.head_step, "resumed_from": checkpoint_or_none(state.parent)}
    for name, value in (fresh if decision.fresh else now).items():
        setattr(report, name, value)
    report.rows_done = decision.rows_start
    report.steps_run = steps_of(report.rows_total - decision.rows_start, report.grad_accum)
    report.global_step = report.from_step + report.steps_run
    more = method_warnings(settings.method, report.rows_total - decision.rows_start, report.grad_accum)
    report.warnings = [*report.warnings, *decision.warnings, *more]
    return report
