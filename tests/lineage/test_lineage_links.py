"""Links and names that lead out of the bucket: never followed, neither to read, nor to write, nor to delete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.lineage.making import extend, files_below, make, make_next

from stepctl.base.errors import DamagedCheckpoint, UsageError
from stepctl.base.names import utc_now
from stepctl.lineage.buckets import Bucket, BucketError, open_bucket
from stepctl.lineage.store import choose, clean_leftovers, commit, fetch_checkpoint, prune, read_lineage, verify


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "precious.txt").write_bytes(b"precious")
    return folder


@pytest.mark.parametrize("part", ["", "main", "main/checkpoints", "main/claims", "main/choices"])
def test_a_linked_folder(bucket: Bucket, root: Path, work: Path, outside: Path, part: str) -> None:
    extend(bucket, work, "a")
    made = make_next(work, read_lineage(bucket, "main"), "b")
    choose(bucket, "main", "root", "rollback")
    choose(bucket, "main", "00000001-a", "use")
    target = outside / "moved"
    (root / part).rename(target)
    (root / part).symlink_to(target)
    before = files_below(outside)
    if part == "":  # the bucket itself may be reached through a link
        assert commit(bucket, *made).head == "00000002-b"
        return
    with pytest.raises(BucketError, match="is a link"):
        read_lineage(bucket, "main")
    with pytest.raises(BucketError, match="is a link"):
        commit(bucket, *made)
    with pytest.raises(BucketError, match="is a link"):
        prune(bucket, "main", 1)
    assert {k: v for k, v in files_below(outside).items() if ".lock" not in k} == {
        k: v for k, v in before.items() if ".lock" not in k
    }


@pytest.mark.parametrize("name", ["", "adapter.safetensors", "ledger.jsonl", "manifest.json", "reference"])
def test_a_linked_part_of_the_head(bucket: Bucket, root: Path, work: Path, outside: Path, name: str) -> None:
    """The content behind the link is right, and is refused all the same."""
    for run in ("a", "b"):
        extend(bucket, work, run)
    path = root / "main" / "checkpoints" / "00000002-b" / name
    path.rename(outside / "moved")
    path.symlink_to(outside / "moved")
    before = files_below(outside)
    with pytest.raises(DamagedCheckpoint, match="00000002-b"):
        read_lineage(bucket, "main")
    with pytest.raises(DamagedCheckpoint, match="00000002-b"):
        fetch_checkpoint(bucket, "main", "00000002-b", None, work / "to")
    assert {damage.checkpoint for damage in verify(bucket, "main").damages} == {"00000002-b"}
    clean_leftovers(bucket, "main", "b", utc_now())
    assert files_below(outside) == before


def test_links_among_leftovers_are_unlinked(bucket: Bucket, root: Path, work: Path, outside: Path) -> None:
    extend(bucket, work, "a")
    folder = root / "main" / "checkpoints" / "00000002-own"
    folder.mkdir()
    (folder / "dir").symlink_to(outside)
    (folder / "file").symlink_to(outside / "precious.txt")
    clean_leftovers(bucket, "main", "own", utc_now())
    assert not folder.exists()
    assert files_below(outside) == {"precious.txt": b"precious"}


def test_pruning_a_checkpoint_with_links(bucket: Bucket, root: Path, work: Path, outside: Path) -> None:
    for run in ("a", "b"):
        extend(bucket, work, run)
    (root / "main" / "checkpoints" / "00000001-a" / "dir").symlink_to(outside)
    assert prune(bucket, "main", 1) == ["00000001-a"]
    assert not (root / "main" / "checkpoints" / "00000001-a").exists()
    assert files_below(outside) == {"precious.txt": b"precious"}


def test_a_commit_does_not_write_through_a_link(bucket: Bucket, root: Path, work: Path, outside: Path) -> None:
    extend(bucket, work, "a")
    folder = root / "main" / "checkpoints" / "00000002-b"
    folder.mkdir()
    (folder / "reference").symlink_to(outside)
    with pytest.raises(BucketError, match="is a link"):
        extend(bucket, work, "b")
    assert files_below(outside) == {"precious.txt": b"precious"}


def test_a_pipe_in_the_place_of_a_file_does_not_hang(bucket: Bucket, root: Path, work: Path) -> None:
    extend(bucket, work, "a")
    path = root / "main" / "checkpoints" / "00000001-a" / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedCheckpoint):
        read_lineage(bucket, "main")
    with pytest.raises(BucketError, match="not a file"):
        bucket.read("main/checkpoints/00000001-a/manifest.json")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "main/../../x", "main//x", ".", "", "main\\x", "a\0b"])
def test_paths_that_lead_elsewhere(bucket: Bucket, root: Path, path: str) -> None:
    root.mkdir()
    for act in (
        lambda: bucket.read(path),
        lambda: bucket.put_new(path, b""),
        lambda: bucket.delete([path]),
        lambda: bucket.list_files(path),
    ):
        with pytest.raises(BucketError, match="not a path inside"):
            act()


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "/abs"])
def test_lineage_names_that_are_paths(bucket: Bucket, name: str) -> None:
    with pytest.raises(UsageError):
        read_lineage(bucket, name)


def test_a_local_link_is_no_part_of_a_checkpoint(work: Path, outside: Path) -> None:
    folder, _ = make(work, "a")
    (folder / "more").symlink_to(outside / "precious.txt")
    from stepctl.base.errors import StepctlError
    from stepctl.lineage.store import entries_of

    with pytest.raises(StepctlError, match="not a regular file"):
        entries_of(folder)


def test_other_kinds_of_buckets() -> None:
    for url in ("hf://models/ns/name", "s3://x", ""):
        with pytest.raises(UsageError):
            open_bucket(url)
