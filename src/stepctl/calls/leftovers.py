"""What ended runs left: a pod whose end was not confirmed costs money, and its job may still commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stepctl.base.errors import Exit, StepctlError
from stepctl.calls.attach import reclaim
from stepctl.calls.away import blame_pods
from stepctl.calls.reporting import exit_code
from stepctl.calls.world import World
from stepctl.runs.pods import Attempt, PodFile
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report

if TYPE_CHECKING:
    from stepctl.targets.runpod.errors import PodAlive


def end_left(world: World) -> None:
    """End what ended runs of this project left: a create without an answer may have come late, an end may not have
    been confirmed, a secret may not have been deleted. What cannot be ended now is passed over: the next call tries
    again, and the pod guards itself.
    """
    for name in world.store.names():
        with suppress(StepctlError):
            file = PodFile(world.store.folder(name))
            if file.exists() and ((left := file.load()).open or left.secret_open):
                record = world.store.load(name)
                if record.state not in UNFINISHED:
                    reclaim(world, record)


def rivals(world: World, bucket: str, lineage: str) -> list[RunRecord]:
    """Ended runs of a lineage whose job may still commit: nobody saw its end, and that of its pod is not confirmed."""
    found = []
    for record, alive in _left(world, bucket, lineage):
        job = world.store.job_dir(record.run)
        unheard = record.job is not None and not job.has_ended
        working = any(each.working_at for each in alive)
        if unheard and working and not record.staged and record.state != "done":
            found.append(record)
    return found


def end_rival(world: World, rival: RunRecord) -> None:
    """End its pod; one that cannot be ended now is a rival still."""
    world.listener.notice(f"run {rival.run} has ended, and its pod may still train: it is ended first")
    with suppress(StepctlError):
        reclaim(world, rival)


def refusal(world: World, rival: RunRecord) -> PodAlive:
    """Why nothing is trained: two jobs would train from one head."""
    from stepctl.targets.runpod.end import pod_alive

    alive = PodFile(world.store.folder(rival.run)).load().unended
    error = pod_alive(rival.run, alive, f"it may still train and commit for run {rival.run}")
    error.safe = "nothing was trained or rented by this call"
    return error


def with_left(world: World, report: Report) -> Report:
    """Say of a call that has ended which earlier runs of its lineage have a pod that may be alive."""
    if report.state not in ("running", "planned"):
        left = [record.run for record, _ in _left(world, report.bucket, report.lineage) if record.run != report.run]
        if left:
            report.pods_left, report.pod_alive = left, True
            report.exit_code = exit_code(report)
    return report


@contextmanager
def blaming_left(world: World, record: RunRecord) -> Iterator[None]:
    """Whatever goes wrong with a run says so when a pod that an earlier one left may still be alive."""
    try:
        yield
    except StepctlError as error:
        for other, _ in _left(world, record.bucket, record.lineage):
            if other.run != record.run and error.exit_code != Exit.POD_ALIVE:
                blame_pods(error, world.store, other.run)
        raise


def _left(world: World, bucket: str, lineage: str) -> list[tuple[RunRecord, list[Attempt]]]:
    """Ended runs of a lineage, and their pods that are known and whose end is not confirmed."""
    found = []
    for name in world.store.names():
        with suppress(StepctlError):
            file = PodFile(world.store.folder(name))
            alive = [each for each in file.load().unended if each.pod] if file.exists() else []
            record = world.store.load(name) if alive else None
            if record and record.state not in UNFINISHED and (record.bucket, record.lineage) == (bucket, lineage):
                found.append((record, alive))
    return found
