"""Damage: found by verify, refused by fetch, never trained on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.lineage.making import both, extend, files_below, make, make_next

from stepctl.base.errors import DamagedCheckpoint
from stepctl.lineage.buckets import Bucket
from stepctl.lineage.store import (
    check_folder,
    commit,
    encode_manifest,
    entries_of,
    fetch_checkpoint,
    ledger_for,
    read_lineage,
    verify,
)

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"


def _damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    match kind:
        case "cut":
            path.write_bytes(data[:-20])
        case "zero":
            path.write_bytes(b"")
        case "lfs":
            path.write_bytes(LFS)
        case "flipped":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "missing":
            path.unlink()


@pytest.mark.parametrize("kind", ["cut", "zero", "lfs", "flipped", "missing"])
@pytest.mark.parametrize("name", ["adapter.safetensors", "ledger.jsonl", "reference/adapter.safetensors"])
def test_a_damaged_file_of_the_head(bucket: Bucket, root: Path, work: Path, kind: str, name: str) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    head = read_lineage(bucket, "main")
    assert head.head is not None
    path = root / "main" / "checkpoints" / "00000002-b" / name
    size = path.stat().st_size
    _damage(path, kind)

    with pytest.raises(DamagedCheckpoint, match=name) as refused:
        fetch_checkpoint(bucket, "main", "00000002-b", head.head_sha256, work / "to")
    assert "nothing was trained" in refused.value.safe
    assert "stepctl lineage verify" in refused.value.next
    assert not (work / "to" / name).exists()
    found = verify(bucket, "main")
    assert [(damage.checkpoint, damage.path) for damage in found.damages] == [("00000002-b", name)]

    if kind == "flipped" and name != "ledger.jsonl":
        # The listing does not show it: it is found when the file is fetched.
        assert read_lineage(bucket, "main").head == head.head
        assert "00000001-a" in refused.value.next
        return
    with pytest.raises(DamagedCheckpoint, match=name) as refused:
        read_lineage(bucket, "main")
    if kind in ("cut", "zero", "lfs"):
        assert f"{path.stat().st_size} bytes, the manifest says {size}" in refused.value.message
        assert "00000001-a" in refused.value.next


def test_damage_of_an_ancestor_is_found_but_hinders_nothing(bucket: Bucket, root: Path, work: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    checkpoints = root / "main" / "checkpoints"
    _damage(checkpoints / "00000001-a" / "ledger.jsonl", "flipped")
    (checkpoints / "00000001-a" / "notes.txt").write_text("mine")
    (checkpoints / "unknown").mkdir()
    (checkpoints / "unknown" / "x").write_bytes(b"")
    assert read_lineage(bucket, "main").parent == "00000002-b"
    report = verify(bucket, "main")
    assert report.checkpoints == ["00000001-a", "00000002-b"]
    assert [(damage.checkpoint, damage.path) for damage in report.damages] == [("00000001-a", "ledger.jsonl")]
    assert report.extra == ["main/checkpoints/00000001-a/notes.txt", "main/checkpoints/unknown/x"]


def test_a_manifest_in_another_folder(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    (root / "main" / "checkpoints" / "00000001-a").rename(root / "main" / "checkpoints" / "00000005-z")
    report = verify(bucket, "main")
    assert (report.damages[0].checkpoint, report.damages[0].path) == ("00000005-z", "manifest.json")
    assert "is of checkpoint 00000001-a" in report.damages[0].problem
    with pytest.raises(DamagedCheckpoint, match="00000005-z"):
        read_lineage(bucket, "main")


def test_a_ledger_that_denies_its_ancestors_manifest(bucket: Bucket, root: Path, work: Path) -> None:
    """Valid by itself and by its manifest, but another history than the stored one."""
    extend(bucket, work, "a")
    seen = read_lineage(bucket, "main")
    folder, manifest = make_next(work, seen, "b")
    last = msgspec.json.decode((folder / "ledger.jsonl").read_bytes().splitlines()[-1], type=type(seen.ledger[0]))
    denied = msgspec.structs.replace(seen.ledger[0], parent="root-other")
    (folder / "ledger.jsonl").write_bytes(ledger_for([denied], last))
    manifest = msgspec.structs.replace(manifest, files=entries_of(folder))
    with pytest.raises(DamagedCheckpoint, match="says that 00000001-a extends root-other"):
        commit(bucket, folder, manifest)
    damages = verify(bucket, "main").damages
    assert {(damage.checkpoint, damage.path) for damage in damages} == {("00000002-b", "ledger.jsonl")}


@both
def test_fetch_gives_every_file(bucket: Bucket, work: Path) -> None:
    folder, manifest = made = make(work, "a")
    commit(bucket, *made)
    state = read_lineage(bucket, "main")
    assert fetch_checkpoint(bucket, "main", "00000001-a", state.head_sha256, work / "to") == manifest
    assert files_below(work / "to") == files_below(folder)
    check_folder(work / "to", manifest)
    (work / "to" / "adapter.safetensors").write_bytes(b"other")
    with pytest.raises(DamagedCheckpoint, match=r"adapter\.safetensors has 5 bytes"):
        check_folder(work / "to", manifest)


def test_fetch_of_another_manifest_than_expected(bucket: Bucket, root: Path, work: Path) -> None:
    _, manifest = made = make(work, "a")
    commit(bucket, *made)
    sha256 = read_lineage(bucket, "main").head_sha256
    path = root / "main" / "checkpoints" / "00000001-a" / "manifest.json"
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, loss=0.1)))
    with pytest.raises(DamagedCheckpoint, match="expected"):
        fetch_checkpoint(bucket, "main", "00000001-a", sha256, work / "to")
    with pytest.raises(DamagedCheckpoint, match="is missing"):
        fetch_checkpoint(bucket, "main", "00000002-b", None, work / "to")
    assert not (work / "to").exists()
