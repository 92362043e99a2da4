"""A reader between another's acts, step by step; and a kind of bucket whose storage decides nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.lineage.making import both, extend, make_next

from stepctl.lineage.buckets import Bucket, Stored
from stepctl.lineage.buckets.base import LOCK_WAIT_SEC
from stepctl.lineage.records import FileEntry
from stepctl.lineage.store import choose, commit, prune, read_lineage, verify


class Between:
    """A bucket during whose listings something happens, once: after the ``at``-th listing (from 1)."""

    def __init__(self, bucket: Bucket, at: int, act: Callable[[], object], *, exclusive: bool | None = None) -> None:
        self.bucket, self.at, self.act = bucket, at, act
        self.exclusive = bucket.exclusive if exclusive is None else exclusive
        self.url, self.listings = bucket.url, 0

    def uncached(self) -> Bucket:
        return self

    def list_files(self, prefix: str) -> Sequence[Stored]:
        found = self.bucket.list_files(prefix)
        self.listings += 1
        if self.listings == self.at:
            self.act()
        return found

    def read(self, path: str) -> bytes:
        return self.bucket.read(path)

    def sha256(self, path: str) -> str:
        return self.bucket.sha256(path)

    def fetch(self, prefix: str, paths: Sequence[str], to: Path) -> None:
        self.bucket.fetch(prefix, paths, to)

    def put_files(self, prefix: str, folder: Path, entries: Sequence[FileEntry]) -> None:
        self.bucket.put_files(prefix, folder, entries)

    def put_new(self, path: str, data: bytes) -> bool:
        return self.bucket.put_new(path, data)

    def delete(self, paths: Sequence[str]) -> None:
        self.bucket.delete(paths)

    def lock(self, lineage: str, wait_sec: float = LOCK_WAIT_SEC) -> AbstractContextManager[None]:
        return self.bucket.lock(lineage, wait_sec)

    def check_writable(self) -> None:
        self.bucket.check_writable()


@both
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_commit_and_a_prune_while_reading(bucket: Bucket, work: Path, at: int) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)

    def act() -> None:
        for run in ("c", "d"):
            extend(bucket, work, run)
            prune(bucket, "main", 1)

    state = read_lineage(Between(bucket, at, act), "main")
    assert (state.parent, state.notes) == ("00000004-d", [])
    assert [line.run for line in state.ledger] == ["a", "b", "c", "d"]


@both
@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_first_commit_of_all_while_reading(bucket: Bucket, work: Path, at: int) -> None:
    state = read_lineage(Between(bucket, at, lambda: extend(bucket, work, "a")), "main")
    assert state.parent in ("root", "00000001-a")
    assert state.notes == []


@both
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_rollback_while_reading(bucket: Bucket, work: Path, at: int) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)

    def act() -> None:
        choose(bucket, "main", "00000001-a", "rollback")
        extend(bucket, work, "c")

    state = read_lineage(Between(bucket, at, act), "main")
    assert state.parent in ("00000002-b", "00000002-c")
    assert state.notes == []


@both
def test_a_prune_while_verifying(bucket: Bucket, work: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    before = verify(bucket, "main")
    assert before.checkpoints == ["00000001-a", "00000002-b"]
    report = verify(Between(bucket, 3, lambda: extend(bucket, work, "c")), "main")
    assert report.damages == []


def test_where_the_storage_decides_nothing_time_and_name_do(bucket: Bucket, root: Path, work: Path) -> None:
    plain = Between(bucket, 0, lambda: None, exclusive=False)
    extend(plain, work, "a")
    seen = read_lineage(plain, "main")
    first, second = make_next(work, seen, "y"), make_next(work, seen, "x")
    assert commit(plain, *first).forked is False
    late = commit(plain, *second)
    stored = {s.path.split("/")[2]: s.stored_at for s in plain.list_files("main/checkpoints") if "manifest" in s.path}
    winner = min(("00000002-x", "00000002-y"), key=lambda name: (stored[name], name))
    assert (late.head, read_lineage(plain, "main").parent) == (winner, winner)
    assert not (root / "main" / "claims").exists()
    choose(plain, "main", "00000001-a", "rollback")
    assert extend(plain, work, "z").head == "00000002-z"
    assert prune(plain, "main", 1) == ["00000001-a"]
    shutil.rmtree(root / "main" / "checkpoints" / winner)
    assert read_lineage(plain, "main").parent == "00000002-z"
