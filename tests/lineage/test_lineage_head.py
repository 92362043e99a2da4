"""The head's rule: forks, choices, claims, and heads that cannot be known."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.lineage.making import Died, both, dying, extend, make, make_next

from stepctl.base.errors import DamagedCheckpoint, StepctlError, UsageError
from stepctl.lineage.buckets import Bucket
from stepctl.lineage.records import ROOT
from stepctl.lineage.store import choose, commit, prune, read_lineage, verify


@both
def test_two_writers_from_one_head(bucket: Bucket, work: Path) -> None:
    """Both read head 4. One commits 5, the other's 6 is kept beside the path, and repeated it gives 7."""
    extend(bucket, work, "start", steps=4)
    seen = read_lineage(bucket, "main")
    a = make_next(work, seen, "a", steps=1)
    b = make_next(work, seen, "b", steps=2)
    assert commit(bucket, *a).forked is False
    late = commit(bucket, *b)
    assert (late.checkpoint, late.forked, late.head) == ("00000006-b", True, "00000005-a")
    state = read_lineage(bucket, "main")
    assert state.head_step == 5
    assert {info.manifest.checkpoint: info.on_path for info in state.checkpoints} == {
        "00000004-start": True,
        "00000005-a": True,
        "00000006-b": False,
    }
    assert extend(bucket, work, "b2", steps=2).head == "00000007-b2"
    assert commit(bucket, *b).forked is True


@both
def test_going_on_from_a_fork(bucket: Bucket, work: Path) -> None:
    extend(bucket, work, "start")
    seen = read_lineage(bucket, "main")
    commit(bucket, *make_next(work, seen, "a"))
    commit(bucket, *make_next(work, seen, "b"))
    choose(bucket, "main", "00000002-b", "use")
    assert read_lineage(bucket, "main").parent == "00000002-b"
    assert extend(bucket, work, "c").head == "00000003-c"
    assert [line.run for line in read_lineage(bucket, "main").ledger] == ["start", "b", "c"]


@both
def test_a_rollback_ends_exactly_where_it_says(bucket: Bucket, work: Path) -> None:
    for run in ("a", "b", "c"):
        extend(bucket, work, run)
    stale = make_next(work, read_lineage(bucket, "main"), "stale")
    chosen = choose(bucket, "main", "00000001-a", "rollback", "r")
    assert chosen is not None
    assert chosen.passed_over == ("00000002-b",)
    assert read_lineage(bucket, "main").parent == "00000001-a"
    assert commit(bucket, *stale).forked is True
    assert extend(bucket, work, "d").head == "00000002-d"
    assert [line.run for line in read_lineage(bucket, "main").ledger] == ["a", "d"]
    # Again to the same place: what was made since is passed over too.
    choose(bucket, "main", "00000001-a", "rollback")
    assert extend(bucket, work, "e").head == "00000002-e"


def test_a_choice_of_the_head_writes_nothing(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    assert choose(bucket, "main", "00000001-a", "rollback") is None
    assert not (root / "main" / "choices").exists()


@both
def test_back_to_the_start_of_all(bucket: Bucket, work: Path) -> None:
    extend(bucket, work, "a")
    choose(bucket, "main", ROOT, "rollback")
    state = read_lineage(bucket, "main")
    assert (state.head, state.parent, state.head_step, state.empty) == (None, ROOT, 0, False)
    assert extend(bucket, work, "b").head == "00000001-b"


@both
@pytest.mark.parametrize("at", ["00000009-x", "nonsense", "00000001-a"])
def test_only_a_complete_checkpoint_can_be_chosen(bucket: Bucket, work: Path, at: str) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    prune(bucket, "main", 1)
    with pytest.raises(UsageError, match="not a complete checkpoint"):
        choose(bucket, "main", at, "use")


def test_a_writer_fixes_the_head_that_readers_saw(bucket: Bucket, root: Path, work: Path) -> None:
    """Z dies before its claim. It is the head for readers, and no sibling of an earlier time and name displaces it."""
    seen = read_lineage(bucket, "main")
    z, a = make_next(work, seen, "z"), make_next(work, seen, "a")
    for at in range(200):
        with pytest.raises(Died), dying(at):
            commit(bucket, *z)
        if (root / "main" / "checkpoints" / "00000001-z" / "manifest.json").exists():
            break
    assert not (root / "main" / "claims").exists()
    assert read_lineage(bucket, "main").parent == "00000001-z"
    os.utime(root / "main" / "checkpoints" / "00000001-z" / "manifest.json", (10**10, 10**10))  # the clock was wrong
    assert commit(bucket, *a).forked is True
    assert read_lineage(bucket, "main").parent == "00000001-z"


def test_unclaimed_siblings_go_by_time_and_then_by_name(bucket: Bucket, root: Path, work: Path) -> None:
    seen = read_lineage(bucket, "main")
    for run in ("c", "b", "a"):
        commit(bucket, *make_next(work, seen, run))
    shutil.rmtree(root / "main" / "claims")
    checkpoints = root / "main" / "checkpoints"
    for run, when in (("c", 20), ("b", 5), ("a", 10)):
        os.utime(checkpoints / f"00000001-{run}" / "manifest.json", (when, when))
    assert read_lineage(bucket, "main").parent == "00000001-b"
    os.utime(checkpoints / "00000001-b" / "manifest.json", (10, 10))
    assert read_lineage(bucket, "main").parent == "00000001-a"
    assert not (root / "main" / "claims").exists()
    assert read_lineage(bucket, "main", claim=True).parent == "00000001-a"
    os.utime(checkpoints / "00000001-c" / "manifest.json", (1, 1))
    assert read_lineage(bucket, "main").parent == "00000001-a"


def test_without_claims_the_pruned_sibling_came_first(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    seen = read_lineage(bucket, "main")
    extend(bucket, work, "b")
    commit(bucket, *make_next(work, seen, "a-fork"))
    for run in ("c", "d"):
        extend(bucket, work, run)
    assert "00000002-b" in prune(bucket, "main", 2)
    shutil.rmtree(root / "main" / "claims")
    os.utime(root / "main" / "checkpoints" / "00000002-a-fork" / "manifest.json", (1, 1))
    assert read_lineage(bucket, "main").parent == "00000004-d"


def test_a_head_deleted_by_hand_is_said(bucket: Bucket, root: Path, work: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    seen = read_lineage(bucket, "main")
    shutil.rmtree(root / "main" / "checkpoints" / "00000002-b")
    state = read_lineage(bucket, "main")
    assert state.parent == "00000001-a"
    assert "00000002-b" in state.notes[0]
    # The next one takes over the claim, for good: also when the old one comes back.
    assert extend(bucket, work, "c").head == "00000002-c"
    commit(bucket, *make(work / "again", "b", parent="00000001-a", ledger=seen.ledger[:1]))
    after = read_lineage(bucket, "main")
    assert (after.parent, after.notes) == ("00000002-c", [])


def test_the_loss_of_all_checkpoints_is_not_a_new_lineage(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    shutil.rmtree(root / "main" / "checkpoints")
    with pytest.raises(StepctlError, match="00000001-a") as damaged:
        read_lineage(bucket, "main")
    assert damaged.value.code == "damaged_lineage"
    assert [damage.checkpoint for damage in verify(bucket, "main").damages] == [""]
    fresh = commit(bucket, *make(work, "b", parent="root-b"), choose_root=True)
    assert (fresh.head, fresh.forked) == ("00000001-b", False)


def test_a_chosen_checkpoint_that_is_gone(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    seen = read_lineage(bucket, "main")
    commit(bucket, *make_next(work, seen, "b"))
    commit(bucket, *make_next(work, seen, "c"))
    choose(bucket, "main", "00000002-c", "use")
    shutil.rmtree(root / "main" / "checkpoints" / "00000002-c")
    with pytest.raises(StepctlError, match="00000002-c") as damaged:
        read_lineage(bucket, "main")
    assert damaged.value.code == "damaged_lineage"
    assert "nothing was trained" in damaged.value.safe
    choose(bucket, "main", "00000002-b", "use")
    assert read_lineage(bucket, "main").parent == "00000002-b"


def test_a_chosen_checkpoint_that_only_a_ledger_knows(bucket: Bucket, root: Path, work: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    choose(bucket, "main", "00000001-a", "rollback")
    shutil.rmtree(root / "main" / "checkpoints" / "00000001-a")
    with pytest.raises(StepctlError, match="00000001-a, which should be the head, is gone"):
        read_lineage(bucket, "main")


def test_an_unreadable_choice(bucket: Bucket, root: Path, work: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    choose(bucket, "main", "00000001-a", "rollback")
    (root / "main" / "choices" / "000001.json").write_bytes(b'{"at"')
    with pytest.raises(StepctlError, match=r"choices/000001\.json cannot be read"):
        read_lineage(bucket, "main")


@pytest.mark.parametrize("data", [b"", b'{"version":', b"[]", b"\xff\xfe", b'{"version":1}'])
def test_an_unreadable_manifest_of_the_head(bucket: Bucket, root: Path, work: Path, data: bytes) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    (root / "main" / "checkpoints" / "00000002-b" / "manifest.json").write_bytes(data)
    for _ in range(2):
        with pytest.raises(DamagedCheckpoint, match=r"00000002-b .*manifest\.json"):
            read_lineage(bucket, "main")
        # Also when its ledger is lost and only its claim tells where it belongs; and its step, without the claim.
        (root / "main" / "checkpoints" / "00000002-b" / "ledger.jsonl").unlink(missing_ok=True)
    (root / "main" / "claims" / "00000001-a.json").unlink()
    with pytest.raises(DamagedCheckpoint, match="00000002-b"):
        read_lineage(bucket, "main")
    choose(bucket, "main", "00000001-a", "rollback")
    assert extend(bucket, work, "c").head == "00000002-c"


def test_an_unreadable_manifest_off_the_path_is_no_hindrance(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    seen = read_lineage(bucket, "main")
    commit(bucket, *make_next(work, seen, "b"))
    commit(bucket, *make_next(work, seen, "fork"))
    (root / "main" / "checkpoints" / "00000002-fork" / "manifest.json").write_bytes(b"{")
    assert read_lineage(bucket, "main").parent == "00000002-b"
    assert extend(bucket, work, "c").head == "00000003-c"
    assert [damage.checkpoint for damage in verify(bucket, "main").damages] == ["00000002-fork"]


def test_a_manifest_of_a_newer_release(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    path = root / "main" / "checkpoints" / "00000001-a" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(StepctlError, match="version 2") as newer:
        read_lineage(bucket, "main")
    assert newer.value.code == "manifest_version"
    assert [damage.problem for damage in verify(bucket, "main").damages] == ["has version 2"]


def test_work_is_stored_although_the_head_is_damaged(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    made = make_next(work, read_lineage(bucket, "main"), "b")
    commit(bucket, *make_next(work, read_lineage(bucket, "main"), "c"))
    path = root / "main" / "checkpoints" / "00000002-c" / "manifest.json"
    good = path.read_bytes()
    path.write_bytes(b"{")
    with pytest.raises(DamagedCheckpoint, match="00000002-c"):
        commit(bucket, *made)
    path.write_bytes(good)
    assert commit(bucket, *made).forked is True


def test_a_bucket_that_cannot_be_written_can_be_read(
    bucket: Bucket, root: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reading wrote")

    for name in ("replace", "link", "unlink", "mkdir", "fsync"):
        monkeypatch.setattr(os, name, refuse)
    (root / "main" / ".lock").rename(work / "lock")
    assert read_lineage(bucket, "main").parent == "00000002-b"
    assert verify(bucket, "main").damages == []
    assert not (root / "main" / ".lock").exists()
