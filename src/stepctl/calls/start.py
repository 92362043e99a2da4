"""Steps 4 to 6 of a call: the record, the machine, the job."""

from __future__ import annotations

import math
import secrets
from typing import Any

import msgspec

from stepctl import __version__
from stepctl.base.names import iso, new_run_id, utc_now
from stepctl.calls.away import (
    freight_of,
    is_away,
    is_staged,
    machine_of,
    target_of,
    target_options,
    teller,
    token_for,
    unload,
)
from stepctl.calls.decide import Decision
from stepctl.calls.prepare import Prepared
from stepctl.calls.request import TrainRequest
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget, Settings, TrainSettings
from stepctl.jobs.directory import Payload
from stepctl.jobs.spec import JOB_VERSION, JobSpec, ModelSpec, TraceFile, TraceSpec
from stepctl.lineage.records import ROOT
from stepctl.lineage.store import LineageState
from stepctl.runs.process import myself
from stepctl.runs.record import RunRecord, TraceRecord
from stepctl.targets.base import Machine
from stepctl.traces.rows import Judgement, Source


def steps_of(rows: int, grad_accum: int) -> int:
    """ceil(rows / grad_accum)."""
    return math.ceil(rows / grad_accum)


def method_warnings(method: str, rows: int, grad_accum: int) -> list[dict[str, Any]]:
    """What the method makes of so many rows in groups of ``grad_accum``, as far as a person should know it."""
    if method != "kto" or (grad_accum > 1 and rows % grad_accum != 1):
        return []
    which = "each step has" if grad_accum == 1 else "the last step has"
    text = f"{which} one row: KTO's KL term, which needs another row's completion, is 0 there"
    return [{"code": "single_row_group", "message": text}]


def make_record(
    world: World, request: TrainRequest, prepared: Prepared, decision: Decision, state: LineageState
) -> RunRecord:
    """Write the intent of the call. The caller holds the store's lock.

    A fresh start needs a root of its own only when the lineage has something already.
    """
    now, settings = utc_now(), prepared.settings
    run = request.run or new_run_id(now)
    new_root = decision.fresh and not state.empty
    rows = prepared.judged.kept
    record = RunRecord(
        run=run,
        created_at=iso(now),
        updated_at=iso(now),
        state="created",
        method=settings.method,
        model=settings.model,
        bucket=settings.bucket,
        lineage=settings.lineage,
        target=settings.target,
        key=decision.key,
        trace=TraceRecord(
            paths=request.paths,
            sha256=prepared.judged.sha256,
            rows_total=rows,
            rows_start=decision.rows_start,
            rows_sha256=prepared.judged.rows_sha256,
        ),
        eval=_eval_record(request, prepared.held_out),
        parent=f"{ROOT}-{run}" if new_root else state.parent,
        from_step=0 if new_root else state.head_step,
        steps_planned=steps_of(rows - decision.rows_start, settings.train.grad_accum),
        new_root=new_root,
        client=myself(),
        settings=_settings(prepared, decision.fresh),
        target_options=target_options(settings, decision.key, request.keep_pod_sec),
        staged=is_staged(settings),
        warnings=[
            *prepared.warnings,
            *decision.warnings,
            *method_warnings(settings.method, rows - decision.rows_start, settings.train.grad_accum),
        ],
        expect_step=request.expect_step,
        counts=prepared.judged.counts,
    )
    if request.run is not None:
        world.store.job_dir(run).clear()
    world.store.create(record)
    return record


def _eval_record(request: TrainRequest, held_out: Judgement | None) -> TraceRecord | None:
    if held_out is None or request.eval_path is None:
        return None
    return TraceRecord(
        paths=(request.eval_path,),
        sha256=held_out.sha256,
        rows_total=held_out.kept,
        rows_sha256=held_out.rows_sha256,
    )


def _settings(prepared: Prepared, fresh: bool) -> dict[str, Any]:
    settings = prepared.settings
    return {
        "revision": prepared.identity.revision,
        "keep_checkpoints": settings.keep_checkpoints,
        "init_from": settings.init_from,
        "trust_remote_code": settings.trust_remote_code,
        "fresh": fresh,
        "lora": msgspec.to_builtins(settings.lora),
        "train": msgspec.to_builtins(settings.train),
    }


def start_job(
    world: World, request: TrainRequest, prepared: Prepared, record: RunRecord, state: LineageState
) -> tuple[RunRecord, Machine]:
    """Get the machine, start the trainer there and hand it the examples. Each act is recorded before the next.

    A crash before the process is recorded leaves a trainer that ends by itself, since no examples come. Until a
    machine elsewhere is ready, Ctrl-C ends the call; from then on it is the run's.

    Raises:
        KeyboardInterrupt: there was one before the machine was ready.
    """
    store, run = world.store, record.run
    init = None
    if prepared.origin is not None and (state.head is None or record.new_root):
        init = store.folder(run) / "init"
        prepared.origin.place(prepared.bucket, init)
    spec = _spec(request, prepared, record, state, str(init) if init else None)
    machine = machine_of(store, record, teller(world))
    if is_away(record):
        world.interrupts.disarm()
        machine.prepare(freight_of(world, prepared, record, state, init))
        world.interrupts.armed = True

    def starting(record: RunRecord) -> None:
        record.state = "starting"

    store.update(run, starting)
    process = machine.start(spec)

    def started(record: RunRecord) -> None:
        record.job, record.state = process, "running"

    record = store.update(run, started)
    sources = (request.eval_source,) if request.eval_source else ()
    machine.send(
        Payload(
            trace=tuple(s.data for s in request.sources),
            eval=tuple(s.data for s in sources),
            hf_token=token_for(world, prepared, record),
        )
    )
    if is_away(record):
        unload(store, record)
    return record, machine


def _trace_spec(sources: tuple[Source, ...], trace: TraceRecord) -> TraceSpec:
    return TraceSpec(
        sha256=trace.sha256,
        files=tuple(TraceFile(name=s.name, bytes=len(s.data)) for s in sources),
        rows_total=trace.rows_total,
        rows_start=trace.rows_start,
        rows_sha256=trace.rows_sha256,
    )


def _spec(
    request: TrainRequest, prepared: Prepared, record: RunRecord, state: LineageState, init: str | None
) -> JobSpec:
    settings = prepared.settings
    return JobSpec(
        version=JOB_VERSION,
        release=__version__,
        run=record.run,
        identity=prepared.identity,
        model=ModelSpec(
            source=settings.model, revision=prepared.model.commit, trust_remote_code=settings.trust_remote_code
        ),
        lora=settings.lora,
        train=_train_settings(settings),
        trace=_trace_spec(request.sources, record.trace),
        eval=_trace_spec((request.eval_source,), record.eval) if request.eval_source and record.eval else None,
        bucket=settings.bucket,
        lineage=settings.lineage,
        parent=record.parent,
        parent_sha256=None if record.new_root else state.head_sha256,
        from_step=record.from_step,
        new_root=record.new_root,
        key=record.key,
        keep_checkpoints=settings.keep_checkpoints,
        init_from=init,
        attempt=secrets.token_hex(8),
        staged=record.staged,
    )


def _train_settings(settings: Settings) -> TrainSettings:
    """On a pod the target says what device the job must find: never the processor at the price of a GPU."""
    target = target_of(settings)
    if not isinstance(target, RunpodTarget):
        return settings.train
    return msgspec.structs.replace(settings.train, device=target.device, gpu_ids=())
