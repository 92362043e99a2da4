"""Commits: what is stored in which order, repeated commits, refused ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from tests.lineage.making import both, extend, files_below, make, make_next

from stepctl.base.errors import DamagedCheckpoint, LineageConflict, StepctlError
from stepctl.lineage.buckets import Bucket, BucketError
from stepctl.lineage.ledger import decode_ledger
from stepctl.lineage.records import ROOT, Manifest
from stepctl.lineage.store import choose, commit, decode_manifest, prune, read_lineage, verify


def test_an_empty_bucket_is_an_empty_lineage(bucket: Bucket, root: Path) -> None:
    state = read_lineage(bucket, "main")
    assert (state.head, state.head_step, state.parent, state.ledger, state.empty) == (None, 0, ROOT, (), True)
    assert not root.exists()


def test_commit_makes_the_head(bucket: Bucket, root: Path, work: Path) -> None:
    folder, manifest = make(work, "a", steps=3, key="k")
    said: list[str] = []
    result = commit(bucket, folder, manifest, notify=said.append)
    assert (result.checkpoint, result.forked, result.head) == ("00000003-a", False, "00000003-a")
    assert said == ["files_stored", "manifest_stored"]

    state = read_lineage(bucket, "main")
    assert state.head == manifest
    assert (state.head_step, state.parent, state.empty, state.notes) == (3, "00000003-a", False, [])
    assert [line.key for line in state.ledger] == ["k"]
    assert [(info.is_head, info.on_path) for info in state.checkpoints] == [(True, True)]
    stored = root / "main" / "checkpoints" / "00000003-a"
    assert state.checkpoints[0].bytes == sum(len(data) for data in files_below(stored).values())
    assert {k: v for k, v in files_below(stored).items() if k != "manifest.json"} == files_below(folder)
    assert verify(bucket, "main").damages == []


@both
def test_the_ledger_grows_along_the_chain(bucket: Bucket, work: Path) -> None:
    for number in range(4):
        extend(bucket, work, f"run{number}", key=f"k{number}")
    state = read_lineage(bucket, "main")
    assert [line.checkpoint for line in state.ledger] == [f"0000000{n + 1}-run{n}" for n in range(4)]
    assert state.ledger[0].parent == ROOT


def test_a_repeated_commit_changes_nothing(bucket: Bucket, root: Path, work: Path) -> None:
    made = make(work, "a")
    first = commit(bucket, *made)
    before = files_below(root)
    said: list[str] = []
    assert commit(bucket, *made, notify=said.append) == first
    assert said == ["files_stored", "manifest_stored"]
    assert {k: v for k, v in files_below(root).items() if "lock" not in k} == {
        k: v for k, v in before.items() if "lock" not in k
    }


@both
def test_a_repeated_commit_needs_no_local_files(bucket: Bucket, work: Path) -> None:
    folder, manifest = make(work, "a")
    commit(bucket, folder, manifest)
    extend(bucket, work, "b")
    (folder / "adapter.safetensors").unlink()
    assert commit(bucket, folder, manifest).head == "00000002-b"


@both
def test_a_commit_repeated_after_pruning_does_not_bring_it_back(bucket: Bucket, work: Path) -> None:
    made = make(work, "a")
    commit(bucket, *made)
    extend(bucket, work, "b")
    assert prune(bucket, "main", 1) == ["00000001-a"]
    result = commit(bucket, *made)
    assert (result.forked, result.head) == (False, "00000002-b")
    assert [info.manifest.run for info in read_lineage(bucket, "main").checkpoints] == ["b"]


@both
def test_another_checkpoint_of_the_same_name_is_refused(bucket: Bucket, work: Path) -> None:
    folder, manifest = make(work, "a")
    commit(bucket, folder, manifest)
    with pytest.raises(LineageConflict) as refused:
        commit(bucket, folder, msgspec.structs.replace(manifest, loss=0.25))
    assert refused.value.code == "checkpoint_differs"
    head = read_lineage(bucket, "main").head
    assert head is not None
    assert head.loss == 0.5


@pytest.mark.parametrize("change", ["longer", "same size", "gone", "ledger"])
def test_a_source_that_changed_is_refused(bucket: Bucket, root: Path, work: Path, change: str) -> None:
    folder, manifest = make(work, "a")
    adapter = folder / "adapter.safetensors"
    match change:
        case "longer":
            adapter.write_bytes(adapter.read_bytes() + b"x")
        case "same size":
            adapter.write_bytes(adapter.read_bytes()[::-1])
        case "gone":
            adapter.unlink()
        case "ledger":
            (folder / "ledger.jsonl").write_bytes(b"{}\n")
    with pytest.raises(StepctlError) as refused:
        commit(bucket, folder, manifest)
    assert refused.value.code == "source_changed"
    assert read_lineage(bucket, "main").empty
    assert not [name for name in files_below(root) if ".tmp-" in name]


def _wrong(manifest: Manifest, case: str) -> Manifest:
    replace = msgspec.structs.replace
    entry = manifest.files[0]
    return {
        "step": lambda: replace(manifest, step=9),
        "parent": lambda: replace(manifest, parent="00000007-x"),
        "parent path": lambda: replace(manifest, parent="root-../../x"),
        "climbing path": lambda: replace(
            manifest, files=(*manifest.files, msgspec.structs.replace(entry, path="../x"))
        ),
        "twice": lambda: replace(manifest, files=(*manifest.files, entry)),
        "no ledger": lambda: replace(manifest, files=manifest.files[:1]),
        "version": lambda: replace(manifest, version=7),
    }[case]()


@pytest.mark.parametrize("case", ["step", "parent", "parent path", "climbing path", "twice", "no ledger", "version"])
def test_a_manifest_that_cannot_be_is_refused(bucket: Bucket, root: Path, work: Path, case: str) -> None:
    folder, manifest = make(work, "a")
    with pytest.raises(StepctlError) as refused:
        commit(bucket, folder, _wrong(manifest, case))
    assert refused.value.code == "bad_manifest"
    assert not root.exists()


@both
def test_a_ledger_of_another_checkpoint_is_refused(bucket: Bucket, work: Path) -> None:
    folder, manifest = make(work, "a", key="k")
    with pytest.raises(DamagedCheckpoint, match="differs from the manifest in key"):
        commit(bucket, folder, msgspec.structs.replace(manifest, key="other"))
    assert read_lineage(bucket, "main").empty


def test_everything_is_durable_before_the_manifest_appears(
    bucket: Bucket, root: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss keeps what was synced: each file before its rename, its folders before the manifest's link."""
    log: list[tuple[str, str]] = []
    real_fsync, real_replace, real_link = os.fsync, os.replace, os.link

    def fsync(fd: int) -> None:
        log.append(("fsync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        real_fsync(fd)

    def replace(source: Path, target: Path) -> None:
        assert ("fsync", str(source)) in log
        log.append(("replace", str(target)))
        real_replace(source, target)

    def link(source: Path, target: Path) -> None:
        assert ("fsync", str(source)) in log
        log.append(("link", str(target)))
        real_link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "link", link)
    commit(bucket, *make(work, "a"))

    folder = root / "main" / "checkpoints" / "00000001-a"
    manifest = log.index(("link", str(folder / "manifest.json")))
    last_rename = max(place for place, (what, _) in enumerate(log) if what == "replace")
    assert last_rename < manifest
    synced = {path for what, path in log[last_rename:manifest] if what == "fsync"}
    assert {str(root), *(str(root / "main" / rest) for rest in ("", "checkpoints"))} <= {f"{p}" for p in synced}
    assert {str(folder), str(folder / "reference")} <= synced
    claim = log.index(("link", str(root / "main" / "claims" / "root.json")))
    assert any(entry == ("fsync", str(folder)) for entry in log[manifest:claim])


def test_a_full_disk_leaves_the_head_and_says_so(bucket: Bucket, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extend(bucket, work, "a")
    made = make_next(work, read_lineage(bucket, "main"), "b")
    real = os.replace

    def full(source: Path, target: Path) -> None:
        if "reference" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(BucketError, match="No space left") as failed:
            commit(bucket, *made)
    assert "free some space" in failed.value.next
    state = read_lineage(bucket, "main")
    assert (state.parent, state.incomplete) == ("00000001-a", ["00000002-b"])
    assert commit(bucket, *made).head == "00000002-b"


def test_a_disk_that_stores_something_else_is_found_out(
    bucket: Bucket, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def corrupt(source: Path, target: Path) -> None:
        real(source, target)
        if target.name == "adapter.safetensors":
            target.write_bytes(b"#" * target.stat().st_size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", corrupt)
        with pytest.raises(BucketError, match="what is read back is different"):
            extend(bucket, work, "a")
    assert read_lineage(bucket, "main").empty


def test_leftovers_of_an_interrupted_commit_of_the_same_checkpoint_go(bucket: Bucket, root: Path, work: Path) -> None:
    folder = root / "main" / "checkpoints" / "00000001-a"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "x.bin").write_bytes(b"x")
    (folder / ".tmp-0011").write_bytes(b"half")
    (folder / "adapter.safetensors").write_bytes(b"half")
    commit(bucket, *make(work, "a"))
    report = verify(bucket, "main")
    assert (report.damages, report.extra, report.incomplete) == ([], [], [])
    assert not (folder / "old").exists()


def test_a_fresh_root_becomes_the_head_once(bucket: Bucket, root: Path, work: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    fresh = make(work, "c", parent="root-c")
    for _ in range(3):
        result = commit(bucket, *fresh, choose_root=True)
        assert (result.forked, result.head) == (False, "00000001-c")
    assert len(list((root / "main" / "choices").iterdir())) == 1
    assert extend(bucket, work, "d").head == "00000002-d"
    # Another choice later stays the newest, whoever repeats the commit.
    choose(bucket, "main", "00000002-b", "rollback")
    assert commit(bucket, *fresh, choose_root=True).head == "00000002-b"


def test_a_later_commit_makes_a_fresh_root_the_head_when_the_first_did_not(bucket: Bucket, work: Path) -> None:
    """The first may have failed after its manifest was stored."""
    extend(bucket, work, "a")
    folder, first = make(work, "b", parent="root-b")
    assert commit(bucket, folder, first).forked
    ledger = decode_ledger((folder / "ledger.jsonl").read_bytes())
    second = make(work, "b", parent=first.checkpoint, ledger=ledger)
    result = commit(bucket, *second, choose_root=True)
    assert (result.forked, result.head) == (False, "00000002-b")


@pytest.mark.parametrize("parent", [ROOT, "00000001-a"])
def test_only_a_new_root_can_be_chosen_with_a_commit(bucket: Bucket, work: Path, parent: str) -> None:
    extend(bucket, work, "a")
    ledger = read_lineage(bucket, "main").ledger if parent != ROOT else ()
    with pytest.raises(StepctlError, match="cannot be a new root"):
        commit(bucket, *make(work, "b", parent=parent, ledger=ledger), choose_root=True)


def test_the_stored_manifest_is_what_was_committed(bucket: Bucket, root: Path, work: Path) -> None:
    _, manifest = made = make(work, "a")
    commit(bucket, *made)
    data = (root / "main" / "checkpoints" / "00000001-a" / "manifest.json").read_bytes()
    assert decode_manifest(data, "main", "00000001-a") == manifest
