"""Runs on machines of others: what is brought there, what is brought home, and letting the machine go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepctl.base.bugs import bug
from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.base.files import sha256_bytes
from stepctl.calls.saved import commit_saved
from stepctl.calls.world import World
from stepctl.config.model import LocalTarget, RunpodTarget, Settings, SshTarget, Target
from stepctl.jobs.events import Committed
from stepctl.lineage.buckets import is_hub
from stepctl.lineage.records import Manifest
from stepctl.lineage.store import LineageState, copy_checkpoint, lines_of
from stepctl.models.resolve import is_folder
from stepctl.runs.pods import PodFile
from stepctl.runs.record import RunRecord
from stepctl.runs.report import Report
from stepctl.targets.base import Freight, Machine, Teller
from stepctl.targets.open import open_machine

if TYPE_CHECKING:
    from stepctl.calls.prepare import Prepared
    from stepctl.runs.store import RunStore


def is_away(record: RunRecord) -> bool:
    """Whether the run's job is on another machine than this one."""
    return bool(record.target_options.get("kind", "local") != "local")


def machine_of(store: RunStore, record: RunRecord, tell: Teller | None = None) -> Machine:
    """A connection to the run's job, from what the record holds: today's settings do not matter."""
    options = {"kind": "local", **record.target_options}
    return open_machine(options, store.job_dir(record.run), record, tell or Teller())


def teller(world: World) -> Teller:
    """Says what a machine does to whoever listens to the call."""
    return Teller(notice=world.listener.notice, event=world.listener.event)


def target_of(settings: Settings) -> Target:
    """The target that the settings name."""
    return settings.targets.get(settings.target) or LocalTarget()


def target_options(settings: Settings, key: str | None, keep_sec: float | None = None) -> dict[str, Any]:
    """What the record carries of the target: enough to find and end its machine without the settings of today.

    ``mark`` is how another machine that repeats the call (``--key``) finds its pod.
    """
    options: dict[str, Any] = msgspec.to_builtins(target_of(settings))
    if isinstance(target_of(settings), RunpodTarget):
        options |= {"mark": mark_of(settings, key), "keep_sec": keep_sec}
    return options


def recorded_target(record: RunRecord) -> LocalTarget | SshTarget | RunpodTarget:
    """The target as it was when the run was made, whatever the settings of today say."""
    kinds: dict[Any, type[LocalTarget | SshTarget | RunpodTarget]] = {"ssh": SshTarget, "runpod": RunpodTarget}
    kind = kinds.get(record.target_options.get("kind"), LocalTarget)
    known = ("kind", *kind.__struct_fields__)
    return msgspec.convert({name: value for name, value in record.target_options.items() if name in known}, kind)


def mark_of(settings: Settings, key: str | None) -> str:
    """Hex sha256 that stands for bucket, lineage and key; empty without a key."""
    if key is None:
        return ""
    return sha256_bytes("\0".join((settings.bucket, settings.lineage, key)).encode())


def is_staged(settings: Settings) -> bool:
    """Whether the client commits: the bucket is a directory here, or the machine is not to have a token that writes.

    Raises:
        UsageError: the machine is asked to commit where it cannot.
    """
    target = target_of(settings)
    if isinstance(target, LocalTarget):
        return False
    if not is_hub(settings.bucket):
        if target.commit == "machine":
            raise UsageError(
                f"targets.{settings.target}.commit is machine, and the bucket {settings.bucket} is a directory of "
                "this machine",
                next='leave commit at "auto", or use a bucket on the Hub',
            )
        return True
    if target.commit != "auto":
        return target.commit == "client"
    return isinstance(target, RunpodTarget) and target.cloud == "COMMUNITY"


def token_for(world: World, prepared: Prepared, record: RunRecord) -> str | None:
    """The Hugging Face token that the job gets, if any: none that it does not need, and none on hardware of others."""
    if is_away(record) and record.staged and record.target_options.get("cloud") == "COMMUNITY":
        return None
    needed = prepared.model.commit is not None or (is_hub(record.bucket) and not record.staged)
    return world.loaded.hf_token if needed else None


def freight_of(world: World, prepared: Prepared, record: RunRecord, state: LineageState, init: Path | None) -> Freight:
    """What the job needs beside it, gathered in the run's folder; ``unload`` removes it again."""
    model = Path(prepared.model.source) if is_folder(prepared.model.source) else None
    digest = prepared.model.revision.removeprefix("files:") if model else ""
    stage = None
    if record.staged and state.head is not None and not record.new_root:
        stage = world.store.folder(record.run) / "stage"
        shutil.rmtree(stage, ignore_errors=True)
        copy_checkpoint(prepared.bucket, record.lineage, record.parent, state.head_sha256, stage)
    return Freight(stage=stage, init=init, model=model, model_digest=digest)


def unload(store: RunStore, record: RunRecord) -> None:
    """Remove what was gathered for the machine."""
    for name in ("stage", "init"):
        shutil.rmtree(store.folder(record.run) / name, ignore_errors=True)


def bring_home(world: World, record: RunRecord, machine: Machine) -> None:
    """Fetch what a job has saved on its machine, and commit it.

    Raises:
        StepctlError, OSError: as :func:`fetch_home` and :func:`commit_home`.
    """
    fetch_home(world, record, machine)
    commit_home(world, record)


def fetch_home(world: World, record: RunRecord, machine: Machine) -> None:
    """Fetch everything that the job has saved and that is not in the bucket.

    Raises:
        MachineGone: the machine is gone; what came before is here.
        StepctlError, OSError: it cannot be reached, or there is no room: not everything is here.
    """
    with world.store.bringing(record.run):
        machine.retrieve(record.lineage, _committed(world, record))


def commit_home(world: World, record: RunRecord) -> None:
    """Commit what is here, in the order of the steps; what is in the bucket then is removed here, but for the last.

    The last stays until the run's record has its final state: a call that is killed before finds it again.

    Raises:
        StepctlError, OSError: the bucket refuses, or a file cannot be read; what is not committed stays here.
    """
    with world.store.bringing(record.run):
        done = commit_saved(world, record)
        if done is None:
            return
        _tell_commit(world, *done)
        for name in _committed(world, record):
            if name != done[0].checkpoint:
                shutil.rmtree(world.store.job_dir(record.run).out / name, ignore_errors=True)


def _committed(world: World, record: RunRecord) -> list[str]:
    """The run's checkpoints in the bucket; none are known of one that cannot be read: fetching again does no harm."""
    try:
        return [line.checkpoint for line in lines_of(world.open(record.bucket), record.lineage, record.run)]
    except (StepctlError, OSError):
        return []


def _tell_commit(world: World, manifest: Manifest, forked: bool) -> None:
    size = sum(entry.size for entry in manifest.files)
    told = Committed(
        checkpoint=manifest.checkpoint, step=manifest.step, rows_done=manifest.rows_done, bytes=size, forked=forked
    )
    world.listener.event(told)


def let_go(world: World, record: RunRecord, machine: Machine, report: Report) -> None:
    """Let the machine of an ended run go, and put the receipt into the report.

    A machine that cannot be let go is no reason to lose what the run did: the report says so, and its exit code.
    """
    try:
        machine.release(keep=report.state in ("done", "stopped"))
        _tell_unresolved(world, record)
    except StepctlError as error:
        # A pod that may be alive is in pod.json; what was left on a machine of the user's own costs nothing.
        world.listener.notice(f"warning: {error.message}" + (f"; next: {error.next}" if error.next else ""))
    finally:
        machine.close()
    with_pods(report, world.store, record.run)


def _tell_unresolved(world: World, record: RunRecord) -> None:
    """Say why the exit code is 8 although nothing that is known is alive."""
    file = PodFile(world.store.folder(record.run))
    waiting = [each.name for each in file.load().open if each.pod is None] if file.exists() else []
    if waiting:
        world.listener.notice(
            f"warning: a pod may still be alive: the create of {', '.join(waiting)} had no answer, and no list shows "
            f"it yet; it ends itself when no client is heard; next: stepctl pod rm {record.run}"
        )


def with_pods(report: Report, store: RunStore, run: str) -> Report:
    """Add the receipts of the run's pods, and what they cost."""
    file = PodFile(store.folder(run))
    if not file.exists():
        return report
    try:
        record = file.load()
    except StepctlError:
        # Damaged, or of a newer release: what it rented is not known here.
        report.pod_alive = True
        return report
    report.pods = [msgspec.to_builtins(attempt) for attempt in record.attempts]
    report.cost_usd = round(record.spent_usd, 4)
    report.pod_alive = bool(record.unended)
    return report


@contextmanager
def blaming_pods(store: RunStore, run: str) -> Iterator[None]:
    """Whatever goes wrong in here says so when a pod of the run may still be alive."""
    try:
        yield
    except StepctlError as error:
        blame_pods(error, store, run)
        raise
    except Exception as error:
        said = in_words(error)
        report_it = said.next
        blame_pods(said, store, run)
        if said.exit_code == Exit.POD_ALIVE:
            said.next += f"; then {report_it}" if report_it else ""
            raise said from error
        raise


def in_words(error: Exception) -> StepctlError:
    """An error that a person reads, of what the operating system refused, or of a bug."""
    if isinstance(error, OSError):
        return StepctlError(": ".join(str(part) for part in (error.strerror or error, error.filename) if part))
    return bug(error)


def blame_pods(error: StepctlError, store: RunStore, run: str) -> None:
    """Make an error say that a pod of the run may still be alive, when that is so: it outranks everything else."""
    file = PodFile(store.folder(run))
    try:
        alive = file.load().unended if file.exists() else []
    except StepctlError:
        # Damaged, or of a newer release: what it rented is not known here.
        error.exit_code = Exit.POD_ALIVE
        error.cost = f"a pod may still be alive, and the record of it cannot be read: {file.path}"
        error.next = "stepctl pod ls"
        return
    if not alive:
        return
    prices = [each.price or each.listed_price for each in alive]
    rate = f" (${sum(p for p in prices if p):.2f} an hour)" if any(prices) else ""
    names = ", ".join(each.pod or each.name for each in alive)
    error.exit_code = Exit.POD_ALIVE
    error.cost = f"a pod may still be alive: {names}{rate}"
    error.next = f"stepctl pod rm {run}"
    if any(each.state == "working" for each in alive):
        error.next = f"stepctl train attach {run} brings its work home and ends it; {error.next} ends it at once"
