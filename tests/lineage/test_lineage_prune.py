"""Pruning and the clearing of leftovers: what goes, what stays, what is still known."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from tests.lineage.making import Died, both, dying, extend, make_next

from stepctl.base.errors import DamagedCheckpoint, LineageConflict, UsageError
from stepctl.base.names import utc_now
from stepctl.lineage.buckets import Bucket
from stepctl.lineage.store import (
    by_key,
    by_trace,
    choose,
    clean_leftovers,
    commit,
    fetch_checkpoint,
    prune,
    read_lineage,
    runs_of,
    verify,
)


def names(bucket: Bucket) -> list[str]:
    return [info.manifest.run for info in read_lineage(bucket, "main").checkpoints]


def test_keys_outlive_pruning(bucket: Bucket, root: Path, work: Path) -> None:
    for number in range(10):
        extend(bucket, work, f"run{number}", key=f"key{number}")
        prune(bucket, "main", 3)
    assert names(bucket) == ["run7", "run8", "run9"]
    assert len(list((root / "main" / "checkpoints").iterdir())) == 3
    state = read_lineage(bucket, "main")
    assert state.head_step == 10
    assert list(runs_of(state.ledger)) == [f"run{number}" for number in range(10)]
    for number in range(10):
        line = by_key(state.ledger, f"key{number}")
        assert line is not None
        assert (line.run, line.step) == (f"run{number}", number + 1)
        assert by_trace(state.ledger, line.trace_sha256) == line
    assert by_key(state.ledger, "key10") is None
    assert verify(bucket, "main").damages == []
    assert extend(bucket, work, "next").head == "00000011-next"


def test_a_pruned_checkpoint_is_not_called_damaged(bucket: Bucket, work: Path) -> None:
    """Who read the head before another writer went on and pruned it is told to try again."""
    for run in ("a", "b"):
        extend(bucket, work, run)
    prune(bucket, "main", 1)
    with pytest.raises(LineageConflict, match="is pruned") as caught:
        fetch_checkpoint(bucket, "main", "00000001-a", None, work / "to")
    assert caught.value.code == "parent_pruned"


@both
def test_only_the_heads_ancestors_go(bucket: Bucket, work: Path) -> None:
    extend(bucket, work, "a")
    seen = read_lineage(bucket, "main")
    extend(bucket, work, "b")
    commit(bucket, *make_next(work, seen, "fork"))
    for run in ("c", "d"):
        extend(bucket, work, run)
    assert prune(bucket, "main", 2) == ["00000001-a", "00000002-b"]
    assert names(bucket) == ["fork", "c", "d"]
    # The fork still knows where it comes from.
    choose(bucket, "main", "00000002-fork", "use")
    assert [line.run for line in read_lineage(bucket, "main").ledger] == ["a", "fork"]
    assert prune(bucket, "main", 1) == []
    assert names(bucket) == ["fork", "c", "d"]


@both
def test_after_a_rollback_the_former_path_stays(bucket: Bucket, work: Path) -> None:
    for run in ("a", "b", "c"):
        extend(bucket, work, run)
    choose(bucket, "main", "00000002-b", "rollback")
    assert prune(bucket, "main", 1) == ["00000001-a"]
    assert extend(bucket, work, "d").head == "00000003-d"
    assert prune(bucket, "main", 1) == ["00000002-b"]
    assert names(bucket) == ["c", "d"]
    assert read_lineage(bucket, "main").parent == "00000003-d"
    assert extend(bucket, work, "e").head == "00000004-e"


@both
def test_keeping_more_than_there_is(bucket: Bucket, work: Path) -> None:
    assert prune(bucket, "main", 1) == []
    extend(bucket, work, "a")
    assert prune(bucket, "main", 3) == []
    with pytest.raises(UsageError):
        prune(bucket, "main", 0)
    assert names(bucket) == ["a"]


def test_a_damaged_head_keeps_its_ancestors(bucket: Bucket, root: Path, work: Path) -> None:
    for run in ("a", "b", "c"):
        extend(bucket, work, run)
    (root / "main" / "checkpoints" / "00000003-c" / "adapter.safetensors").write_bytes(b"")
    with pytest.raises(DamagedCheckpoint):
        prune(bucket, "main", 1)
    assert len(list((root / "main" / "checkpoints").iterdir())) == 3


def _interrupt(bucket: Bucket, work: Path, run: str, at: int) -> None:
    with pytest.raises(Died), dying(at):
        commit(bucket, *make_next(work, read_lineage(bucket, "main"), run))


def test_leftovers_of_the_own_run_go_and_those_of_others_stay(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    _interrupt(bucket, work, "own", 9)
    _interrupt(bucket, work, "other", 9)
    state = read_lineage(bucket, "main")
    assert (state.parent, state.incomplete) == ("00000001-a", ["00000002-other", "00000002-own"])
    (root / "main" / "checkpoints" / "00000001-a" / ".tmp-1").write_bytes(b"half")
    gone = clean_leftovers(bucket, "main", "own", utc_now())
    assert gone
    assert all(path.startswith("main/checkpoints/00000002-own/") for path in gone)
    assert read_lineage(bucket, "main").incomplete == ["00000002-other"]
    assert [path.rsplit("/")[-1] for path in clean_leftovers(bucket, "main", "a", utc_now())] == [".tmp-1"]
    assert verify(bucket, "main").damages == []


def test_what_is_older_than_a_week_goes(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    _interrupt(bucket, work, "other", 9)
    temporary = root / "main" / "claims" / ".tmp-1"
    temporary.write_bytes(b"half")
    soon, late = utc_now() + timedelta(days=6), utc_now() + timedelta(days=8)
    assert clean_leftovers(bucket, "main", "own", soon) == []
    # One file that was touched lately keeps the whole.
    folder = root / "main" / "checkpoints" / "00000002-other"
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    newest = folder / ".tmp-2"
    newest.write_bytes(b"half")
    assert clean_leftovers(bucket, "main", "own", soon) == []
    clean_leftovers(bucket, "main", "own", late)
    assert not folder.exists()
    assert not temporary.exists()
    assert names(bucket) == ["a"]
    assert extend(bucket, work, "b").forked is False


def test_empty_folders_go_too(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    (root / "main" / "checkpoints" / "00000002-own" / "reference").mkdir(parents=True)
    (root / "main" / "checkpoints" / "00000003-own").mkdir()
    assert read_lineage(bucket, "main").incomplete == ["00000002-own", "00000003-own"]
    clean_leftovers(bucket, "main", "own", utc_now())
    assert [path.name for path in (root / "main" / "checkpoints").iterdir()] == ["00000001-a"]
