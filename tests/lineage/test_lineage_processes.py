"""Real processes at the same lineage at the same time: with the lock, and where the file system has no locks."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from tests.lineage.making import extend, make_next

from stepctl.base.errors import LineageConflict, StepctlError
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.store import commit, prune, read_lineage, verify

FORK = multiprocessing.get_context("fork")
ROUNDS = 8


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def _write(base: Path, who: str, barrier: Barrier, locks: bool) -> None:
    if not locks:
        fcntl.flock = _no_locks
    bucket = open_bucket(str(base / "bucket"))
    outcome = []
    for number in range(ROUNDS):
        barrier.wait(30)
        made = make_next(base / who, read_lineage(bucket, "main"), f"{who}{number}")
        barrier.wait(30)
        outcome.append("fork" if commit(bucket, *made).forked else "head")
    (base / f"{who}.txt").write_text(" ".join(outcome))


@pytest.mark.parametrize("locks", [True, False])
def test_two_processes_commit_children_of_one_parent(tmp_path: Path, locks: bool) -> None:
    barrier = FORK.Barrier(2)
    processes = [FORK.Process(target=_write, args=(tmp_path, who, barrier, locks)) for who in ("x", "y")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    bucket = open_bucket(str(tmp_path / "bucket"))
    state = read_lineage(bucket, "main")
    by_round = list(zip(*((tmp_path / f"{who}.txt").read_text().split() for who in ("x", "y")), strict=True))
    assert len(by_round) == ROUNDS
    assert all(sorted(outcomes) == ["fork", "head"] for outcomes in by_round)
    assert state.head_step == ROUNDS
    winners = [line.run for line in state.ledger]
    assert winners == [f"{'x' if x == 'head' else 'y'}{number}" for number, (x, _) in enumerate(by_round)]
    assert len(state.checkpoints) == 2 * ROUNDS
    report = verify(bucket, "main")
    assert (report.damages, report.incomplete, report.extra) == ([], [], [])


def _read_on(base: Path, started: Barrier, errors: Path) -> None:
    bucket = open_bucket(str(base / "bucket"))
    last, said = 0, []
    started.wait(30)
    while not (base / "done").exists():
        try:
            state = read_lineage(bucket, "main")
            if state.head_step < last:
                said.append(f"back from {last} to {state.head_step}")
            said += state.notes
            last = state.head_step
        except StepctlError as error:
            said.append(error.message)
    errors.write_text("\n".join(said))


def test_readers_without_the_lock_see_the_head_only_advance(tmp_path: Path) -> None:
    """While another process commits and prunes to one checkpoint all the time."""
    bucket = open_bucket(str(tmp_path / "bucket"))
    extend(bucket, tmp_path / "work", "start")
    started = FORK.Barrier(2)
    errors = tmp_path / "errors"
    reader = FORK.Process(target=_read_on, args=(tmp_path, started, errors))
    reader.start()
    started.wait(30)
    for number in range(40):
        extend(bucket, tmp_path / "work", f"run{number}")
        prune(bucket, "main", 1)
    (tmp_path / "done").touch()
    reader.join(30)
    assert errors.read_text() == ""


def _hold(base: Path, ready: Barrier) -> None:
    with open_bucket(str(base / "bucket")).lock("main"):
        ready.wait(30)
        signal.pause()


def test_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    ready = FORK.Barrier(2)
    holder = FORK.Process(target=_hold, args=(tmp_path, ready))
    holder.start()
    ready.wait(30)
    bucket = open_bucket(str(tmp_path / "bucket"))
    with pytest.raises(LineageConflict, match=f"process {holder.pid} on "), bucket.lock("main", wait_sec=0):
        pass
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    assert extend(bucket, tmp_path / "work", "a").head == "00000001-a"
