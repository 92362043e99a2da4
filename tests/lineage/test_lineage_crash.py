"""Death at every durable operation: the head is the old or the new one, nothing is damaged, and repeating completes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lineage.making import DURABLE, Died, dying, extend, make, make_next

from stepctl.base.names import utc_now
from stepctl.lineage.buckets import Bucket, open_bucket
from stepctl.lineage.store import choose, clean_leftovers, commit, prune, read_lineage, verify

FRESH_PARENT = "root-new"


def _each_death(tmp_path: Path, prepare: Callable[[Bucket, Path], Callable[[], object]], check: Check) -> list[str]:
    """Die before operation 0, 1, 2... of a prepared act, each in a bucket of its own, until it completes.

    Returns:
        The operations of the whole act.
    """
    for at in range(400):
        base = tmp_path / str(at)
        with dying(10**9):
            bucket = open_bucket(str(base / "bucket"))
            act = prepare(bucket, base / "work")
            old = read_lineage(bucket, "main").parent
        try:
            with dying(at) as made:
                act()
        except Died:
            check(bucket, act, old)
            continue
        assert len(made) == at
        return made
    raise AssertionError("it never completes")


Check = Callable[[Bucket, Callable[[], object], str], None]


def _checked(new: str, completes: Callable[[Bucket], None]) -> Check:
    def check(bucket: Bucket, act: Callable[[], object], old: str) -> None:
        assert verify(bucket, "main").damages == []
        state = read_lineage(bucket, "main")
        assert state.parent in (old, new)
        assert state.notes == []
        with dying(10**9):
            act()
        after = read_lineage(bucket, "main")
        assert (after.parent, after.notes) == (new, [])
        assert verify(bucket, "main").damages == []
        completes(bucket)

    return check


def _clean(bucket: Bucket) -> None:
    """Nothing is left over, but for temporary files of marks, which go by age."""
    report = verify(bucket, "main")
    assert report.incomplete == []
    assert [path for path in report.extra if ".tmp-" not in path] == []


def test_a_commit(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        extend(bucket, work, "a")
        made = make_next(work, read_lineage(bucket, "main"), "b")
        return lambda: commit(bucket, *made)

    def completes(bucket: Bucket) -> None:
        _clean(bucket)
        assert [line.run for line in read_lineage(bucket, "main").ledger] == ["a", "b"]

    made = _each_death(tmp_path, prepare, _checked("00000002-b", completes))
    assert made.count("replace") == 3
    assert made.count("link") == 2
    assert set(made) <= set(DURABLE)


def test_the_first_commit_of_all(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        made = make(work, "a")
        return lambda: commit(bucket, *made)

    assert _each_death(tmp_path, prepare, _checked("00000001-a", _clean)).count("mkdir") >= 5


def test_a_fresh_commit(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        for run in ("a", "b"):
            extend(bucket, work, run)
        made = make(work, "new", parent=FRESH_PARENT)
        return lambda: commit(bucket, *made, choose_root=True)

    def completes(bucket: Bucket) -> None:
        _clean(bucket)
        assert len(bucket.list_files("main/choices")) - _temporary(bucket, "main/choices") == 1

    assert _each_death(tmp_path, prepare, _checked("00000001-new", completes)).count("link") == 3


def _temporary(bucket: Bucket, prefix: str) -> int:
    return sum(".tmp-" in stored.path for stored in bucket.list_files(prefix))


def test_a_fork(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        extend(bucket, work, "a")
        made = make_next(work, read_lineage(bucket, "main"), "fork")
        extend(bucket, work, "b")
        return lambda: commit(bucket, *made).forked or pytest.fail("not a fork")

    _each_death(tmp_path, prepare, _checked("00000002-b", _clean))


def test_a_prune(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        for run in ("a", "b", "c", "d"):
            extend(bucket, work, run, key=run)
        return lambda: prune(bucket, "main", 2)

    def completes(bucket: Bucket) -> None:
        _clean(bucket)
        state = read_lineage(bucket, "main")
        assert [info.manifest.run for info in state.checkpoints] == ["c", "d"]
        assert [line.key for line in state.ledger] == ["a", "b", "c", "d"]

    made = _each_death(tmp_path, prepare, _checked("00000004-d", completes))
    assert made.count("unlink") == 8


def test_a_choice(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        for run in ("a", "b", "c"):
            extend(bucket, work, run)
        return lambda: choose(bucket, "main", "00000001-a", "rollback")

    assert _each_death(tmp_path, prepare, _checked("00000001-a", _clean)).count("link") == 1


def test_a_clearing_of_leftovers(tmp_path: Path) -> None:
    def prepare(bucket: Bucket, work: Path) -> Callable[[], object]:
        extend(bucket, work, "a")
        made = make_next(work, read_lineage(bucket, "main"), "b")
        with pytest.raises(Died), dying(15):
            commit(bucket, *made)
        assert read_lineage(bucket, "main").incomplete == ["00000002-b"]
        return lambda: clean_leftovers(bucket, "main", "b", utc_now())

    _each_death(tmp_path, prepare, _checked("00000001-a", _clean))


def test_death_upon_death(tmp_path: Path) -> None:
    """Each attempt gets one operation further than the one before, in the same bucket, and the last completes."""
    bucket = open_bucket(str(tmp_path / "bucket"))
    with dying(10**9):
        extend(bucket, tmp_path / "work", "a")
    made = make_next(tmp_path / "work", read_lineage(bucket, "main"), "b")
    for at in range(400):
        try:
            with dying(at):
                commit(bucket, *made)
        except Died:
            assert verify(bucket, "main").damages == []
            assert read_lineage(bucket, "main").parent in ("00000001-a", "00000002-b")
        else:
            break
    assert read_lineage(bucket, "main").parent == "00000002-b"
    _clean(bucket)
    assert _temporary(bucket, "main/checkpoints") <= 400
    clean_leftovers(bucket, "main", "b", utc_now())
    assert verify(bucket, "main").extra == []
