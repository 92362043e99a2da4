"""What the tools see of a lineage: log, forks and the list of all, whole or damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from tests.lineage.making import both, extend, make, make_next

from stepctl.lineage.buckets import Bucket, BucketError
from stepctl.lineage.ledger import changes, decode_ledger, ledger_for
from stepctl.lineage.records import Change, LedgerLine
from stepctl.lineage.store import (
    ChoiceEntry,
    RunEntry,
    choose,
    commit,
    forks,
    history,
    look,
    overview,
    prune,
    read_lineage,
)

OLD_LINE = (
    b'{"checkpoint":"00000001-a","parent":"root","run":"a","key":null,"trace_sha256":"x","rows_done":2,"rows_total":2,'
    b'"from_step":0,"step":1,"loss":0.5,"created_at":"2026-11-30T04:15:02.000000Z"}\n'
)


def runs(view_entries: list[RunEntry | ChoiceEntry]) -> list[str]:
    return [e.run if isinstance(e, RunEntry) else f"({e.reason})" for e in view_entries]


def damage(root: Path, checkpoint: str, file: str = "adapter.safetensors", lineage: str = "main") -> None:
    path = root / lineage / "checkpoints" / checkpoint / file
    path.write_bytes(path.read_bytes()[:-3])


def test_a_ledger_of_before_decodes_and_is_not_rewritten() -> None:
    (line,) = decode_ledger(OLD_LINE)
    assert (line.changed, line.exact) == (None, None)
    new = LedgerLine(
        checkpoint="00000002-b",
        parent="00000001-a",
        run="b",
        key=None,
        trace_sha256="y",
        rows_done=1,
        rows_total=1,
        from_step=1,
        step=2,
        loss=None,
        created_at="",
        changed=(Change(name="learning_rate", before=1e-4, after=1e-5),),
        exact=False,
    )
    data = ledger_for((line,), new)
    assert data.startswith(OLD_LINE)
    assert decode_ledger(data) == (line, new)


def test_what_changed(work: Path) -> None:
    _, before = make(work, "a")
    settings = {"learning_rate": 1e-5, "target_modules": ("q_proj",), "brand_new": 1}
    assert changes(None, settings, {}) == ()
    assert changes(before, settings, {"torch": "2", "cuda": "12"}) == (
        Change(name="learning_rate", before=1e-4, after=1e-5),
        Change(name="versions.cuda", before=None, after="12"),
    )


@both
def test_runs_of_the_head_outlive_pruning(bucket: Bucket, work: Path) -> None:
    for run in "abcd":
        extend(bucket, work, run, key=f"key-{run}")
    prune(bucket, "main", 1)
    entries = history(look(bucket, "main"))
    assert runs(entries) == list("abcd")
    first, *_, last = entries
    assert isinstance(first, RunEntry)
    assert isinstance(last, RunEntry)
    assert (first.from_step, first.step, first.key, first.stored) == (0, 1, "key-a", [])
    assert (last.stored, last.on_path, last.extends) == (["00000004-d"], True, "00000003-c")


def test_changes_come_from_the_manifests_while_the_ledger_has_none(bucket: Bucket, work: Path) -> None:
    extend(bucket, work, "a")
    folder, manifest = make_next(work, read_lineage(bucket, "main"), "b")
    commit(bucket, folder, msgspec.structs.replace(manifest, settings={"learning_rate": 1.0}, exact=False))
    entry = history(look(bucket, "main"))[-1]
    assert isinstance(entry, RunEntry)
    assert entry.changed == [Change(name="learning_rate", before=1e-4, after=1.0)]
    prune(bucket, "main", 1)
    entry = history(look(bucket, "main"))[-1]
    assert isinstance(entry, RunEntry)
    assert entry.changed is None  # nothing tells it any more, and that is said


def _on_its_way(bucket: Bucket, work: Path, run: str) -> None:
    """Another checkpoint of the same run, on the head."""
    commit(bucket, *make_next(work / "way", read_lineage(bucket, "main"), run))


def test_a_run_that_committed_on_its_way_is_one_entry(bucket: Bucket, work: Path) -> None:
    extend(bucket, work, "a")
    for _ in range(3):
        _on_its_way(bucket, work, "b")
    entries = history(look(bucket, "main"))
    assert runs(entries) == ["a", "b"]
    entry = entries[1]
    assert isinstance(entry, RunEntry)
    assert (entry.from_step, entry.step, entry.commits, entry.checkpoint) == (1, 4, 3, "00000004-b")
    # A rollback into the middle of that run: the part that is left behind is an entry of its own.
    choose(bucket, "main", "00000002-b", "rollback")
    every = history(look(bucket, "main"), every=True)
    found = [(e.run, e.from_step, e.step, e.on_path) for e in every if isinstance(e, RunEntry)]
    assert found == [("a", 0, 1, True), ("b", 1, 2, True), ("b", 2, 4, False)]


@both
def test_choices_stand_where_they_were_made(bucket: Bucket, work: Path) -> None:
    for run in "abc":
        extend(bucket, work, run)
    choose(bucket, "main", "00000001-a", "rollback")
    folder, manifest = make(work, "f", parent="root-f")
    commit(bucket, folder, manifest, choose_root=True)
    choose(bucket, "main", "00000003-c", "use")
    entries = history(look(bucket, "main"), every=True)
    # All checkpoints here have one and the same time: a fresh start comes before its run, other choices after theirs.
    assert runs(entries) == ["(fresh)", "a", "f", "b", "c", "(rollback)", "(use)"]
    rolled = entries[-2]
    assert isinstance(rolled, ChoiceEntry)
    assert (rolled.number, rolled.at, rolled.step, rolled.left) == (1, "00000001-a", 1, "00000003-c")
    assert runs(history(look(bucket, "main"))) == ["(fresh)", "a", "b", "c", "(rollback)", "(use)"]


@both
def test_forks_say_where_they_leave(bucket: Bucket, work: Path) -> None:
    extend(bucket, work, "a")
    seen = read_lineage(bucket, "main")
    extend(bucket, work, "b")
    commit(bucket, *make_next(work, seen, "fork", steps=3, key="k"))
    commit(bucket, *make(work, "r", parent="root-r"))
    found = forks(look(bucket, "main"))
    assert [(f.checkpoint, f.leaves, f.leaves_step, f.steps, f.runs) for f in found] == [
        ("00000001-r", None, 0, 1, ["r"]),
        ("00000004-fork", "00000001-a", 1, 3, ["fork"]),
    ]
    assert found[1].key == "k"
    assert found[1].bytes > 0
    choose(bucket, "main", "00000004-fork", "use")
    assert [f.checkpoint for f in forks(look(bucket, "main"))] == ["00000001-r", "00000002-b"]


def test_a_fork_several_runs_long(bucket: Bucket, work: Path) -> None:
    for run in "abc":
        extend(bucket, work, run)
    choose(bucket, "main", "00000001-a", "rollback")
    extend(bucket, work, "d")
    assert [(f.checkpoint, f.leaves, f.steps, f.runs) for f in forks(look(bucket, "main"))] == [
        ("00000002-b", "00000001-a", 1, ["b"]),
        ("00000003-c", "00000001-a", 2, ["b", "c"]),
    ]


def test_the_list_of_all_and_one_of_them_damaged(bucket: Bucket, root: Path, work: Path) -> None:
    assert overview(bucket) == []
    extend(bucket, work, "a")
    for run in "xy":
        state = read_lineage(bucket, "second")
        commit(bucket, *make(work, run, parent=state.parent, ledger=state.ledger, lineage="second"))
    damage(root, "00000002-y", lineage="second")
    (root / "notes").mkdir()
    (root / "a name with spaces").mkdir()
    (root / "file").write_text("")
    (root / "linked").symlink_to(root / "main")
    linked, main, second = overview(bucket)
    assert (main.lineage, main.head, main.step, main.checkpoints, main.forks) == ("main", "00000001-a", 1, 1, 0)
    assert (main.damaged, main.method, main.model) == (False, "sft", "org/model")
    stored = sum(path.stat().st_size for path in (root / "main" / "checkpoints").rglob("*") if path.is_file())
    assert main.bytes == stored
    assert (second.damaged, second.head, second.checkpoints) == (True, "00000002-y", 2)
    assert "adapter.safetensors" in (second.problem or "")
    assert linked.damaged
    assert "is a link" in (linked.problem or "")


def test_a_damaged_fork_is_said_in_the_list(bucket: Bucket, root: Path, work: Path) -> None:
    seen = read_lineage(bucket, "main")
    extend(bucket, work, "a")
    commit(bucket, *make_next(work, seen, "b"))
    damage(root, "00000001-b")
    (main,) = overview(bucket)
    assert (main.damaged, main.forks) == (True, 1)
    assert "00000001-b" in (main.problem or "")
    assert "bytes" in (forks(look(bucket, "main"))[0].problem or "")


@pytest.mark.parametrize("file", ["manifest.json", "ledger.jsonl", "adapter.safetensors"])
def test_a_damaged_head_does_not_hide_the_rest(bucket: Bucket, root: Path, work: Path, file: str) -> None:
    for run in "abc":
        extend(bucket, work, run)
    damage(root, "00000003-c", file)
    view = look(bucket, "main")
    assert view.problem is not None
    assert file in view.problem.message
    assert view.path == ("00000001-a", "00000002-b", "00000003-c")
    assert runs(history(view)) == list("abc")
    entry = history(view)[-1]
    assert isinstance(entry, RunEntry)
    assert file in (entry.problem or "")


def test_a_head_of_which_nothing_is_readable(bucket: Bucket, root: Path, work: Path) -> None:
    for run in "abc":
        extend(bucket, work, run)
    for file in ("manifest.json", "ledger.jsonl"):
        (root / "main" / "checkpoints" / "00000003-c" / file).write_bytes(b"{")
    view = look(bucket, "main")
    assert view.problem is not None
    assert view.path == ("00000001-a", "00000002-b")
    assert [m.step for m in view.kept] == [1, 2]


def test_an_unreadable_choice_leaves_the_one_before(bucket: Bucket, root: Path, work: Path) -> None:
    for run in "abc":
        extend(bucket, work, run)
    choose(bucket, "main", "00000002-b", "rollback")
    choose(bucket, "main", "00000001-a", "rollback")
    (root / "main" / "choices" / "000002.json").write_bytes(b"{")
    view = look(bucket, "main")
    assert view.problem is not None
    assert "choices/000002.json" in view.problem.message
    assert view.path == ("00000001-a", "00000002-b")
    assert [(e.number, e.at) for e in history(view) if isinstance(e, ChoiceEntry)] == [(2, None), (1, "00000002-b")]


def test_a_chosen_start_that_is_gone_leaves_the_one_before(bucket: Bucket, root: Path, work: Path) -> None:
    seen = read_lineage(bucket, "main")
    for run in "ab":
        extend(bucket, work, run)
    commit(bucket, *make_next(work, seen, "fork"))
    choose(bucket, "main", "00000001-fork", "use")
    shutil.rmtree(root / "main" / "checkpoints" / "00000001-fork")
    view = look(bucket, "main")
    assert "00000001-fork" in str(view.problem)
    assert view.path == ("00000001-a", "00000002-b")


def test_a_storage_that_fails_is_no_damage(bucket: Bucket, root: Path) -> None:
    root.write_text("a file in the bucket's place")
    with pytest.raises(BucketError):
        overview(bucket)
    with pytest.raises(BucketError):
        look(bucket, "main")
