"""Starting a run again that never got its examples: the run carries everything else that it needs."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from stepctl.base.errors import StepctlError, UsageError
from stepctl.base.files import sha256_bytes
from stepctl.calls.away import is_away, recorded_target
from stepctl.calls.reporting import train_again
from stepctl.calls.request import STDIN, TrainRequest, read_source
from stepctl.calls.train import train
from stepctl.calls.world import World
from stepctl.config.load import Loaded
from stepctl.config.model import LoraSettings, Settings, TrainSettings
from stepctl.runs.pods import PodFile
from stepctl.runs.record import RunRecord, TraceRecord
from stepctl.runs.report import Report
from stepctl.targets.runpod.end import pod_alive
from stepctl.traces.rows import Source


class TraceNeeded(StepctlError):
    """The recorded file is gone, changed, or was stdin."""

    code = "needs_trace"


def restart(world: World, record: RunRecord, trace: list[str] | None = None, timeout: float | None = None) -> Report:
    """Train what run ``record`` was asked to, from the head as it is now, under the same run id.

    Args:
        trace: files to read instead of the recorded ones; their content must be the same.
        timeout: seconds to wait for its end at most; then the report has exit code 124.

    Raises:
        TraceNeeded: the examples are not to be had.
        PodAlive: another run had trained it already, and what this one may have rented is not known to be gone.
        StepctlError: as ``stepctl train``.
    """
    sources = _read(world.loaded, record, record.trace, trace)
    held_out = _read(world.loaded, record, record.eval, None)[0] if record.eval else None
    request = TrainRequest(
        paths=record.trace.paths,
        sources=sources,
        eval_path=record.eval.paths[0] if record.eval else None,
        eval_source=held_out,
        key=record.key,
        go_on=record.key is None and record.trace.rows_start > 0,
        fresh=record.settings.get("fresh", record.new_root),
        expect_step=record.expect_step,
        run=record.run,
        keep_pod_sec=record.target_options.get("keep_sec"),
        timeout=timeout,
    )
    world.loaded = _loaded(world.loaded, record)
    world.interrupts.disarm()
    report = train(world, request)
    file = PodFile(world.store.folder(record.run))
    if report.run != record.run and file.exists() and (left := file.load().unended):
        raise pod_alive(record.run, left, "no list shows it yet; it ends itself when no client is heard")
    return report


def _read(loaded: Loaded, record: RunRecord, trace: TraceRecord, instead: list[str] | None) -> tuple[Source, ...]:
    paths = tuple(instead or trace.paths)
    ask = f"stepctl train attach {record.run} --trace FILE"
    if STDIN in paths:
        raise TraceNeeded("the run's examples came on stdin and never reached the trainer", next=ask)
    try:
        sources = tuple(read_source(path) for path in paths)
    except UsageError as error:
        raise TraceNeeded(f"the run's examples are needed again: {error.message}", next=ask) from error
    if sha256_bytes(b"".join(s.data for s in sources)) != trace.sha256:
        raise TraceNeeded(
            f"{', '.join(paths)} changed since run {record.run} was made",
            safe="nothing was trained",
            next=f"{ask} with the file as it was, or a new call: {train_again(loaded, record)}",
        )
    return sources


def _loaded(loaded: Loaded, record: RunRecord) -> Loaded:
    """Today's settings with the run's own in their place; where another machine was to train, that is the same one."""
    recorded, targets = record.settings, loaded.settings.targets
    if is_away(record):
        targets = {**targets, record.target: recorded_target(record)}
    settings: Settings = msgspec.structs.replace(
        loaded.settings,
        model=record.model,
        revision=None if recorded["revision"].startswith("files:") else recorded["revision"],
        method=record.method,
        bucket=record.bucket,
        lineage=record.lineage,
        target=record.target,
        targets=targets,
        init_from=recorded.get("init_from"),
        keep_checkpoints=recorded["keep_checkpoints"],
        trust_remote_code=recorded.get("trust_remote_code", loaded.settings.trust_remote_code),
        lora=msgspec.convert(recorded["lora"], LoraSettings),
        train=msgspec.convert(recorded["train"], TrainSettings),
    )
    return replace(loaded, settings=settings, given=frozenset(loaded.sources))
