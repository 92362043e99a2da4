"""The directory kind of bucket, by its own contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lineage.making import both

from stepctl.base.errors import LineageConflict
from stepctl.lineage.buckets import Absent, Bucket, BucketError, open_bucket


@both
def test_put_new_is_exclusive(bucket: Bucket) -> None:
    assert bucket.put_new("main/claims/root.json", b"1") is True
    assert bucket.put_new("main/claims/root.json", b"2") is False
    assert bucket.read("main/claims/root.json") == b"1"


@both
def test_what_is_not_there(bucket: Bucket, tmp_path: Path) -> None:
    assert list(bucket.list_files("main")) == []
    with pytest.raises(Absent):
        bucket.read("main/x")
    with pytest.raises(Absent):
        bucket.sha256("main/x")
    with pytest.raises(Absent):
        bucket.fetch("main", ["x"], tmp_path)
    bucket.delete(["main/x", "main/checkpoints/a/b"])


@both
def test_listing_is_by_folder_not_by_text(bucket: Bucket) -> None:
    for path in ("main/x", "main2/x", "main/a/y"):
        bucket.put_new(path, b"12")
    listed = list(bucket.list_files("main"))
    assert [(stored.path, stored.size, stored.plain) for stored in listed] == [
        ("main/a/y", 2, True),
        ("main/x", 2, True),
    ]
    assert all(stored.stored_at > 10**18 for stored in listed)


def test_a_lock_that_is_held(bucket: Bucket, root: Path) -> None:
    other = open_bucket(str(root))
    with bucket.lock("main"):
        with other.lock("second"):
            pass
        with pytest.raises(LineageConflict, match="in use by process") as held, other.lock("main", wait_sec=0):
            pass
    assert held.value.code == "lineage_locked"
    with other.lock("main", wait_sec=0):
        pass
    assert list(bucket.list_files("main")) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    good = open_bucket(str(tmp_path / "a" / "b"))
    good.check_writable()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BucketError, match="Not a directory"):
        open_bucket(str(tmp_path / "file")).check_writable()
    with pytest.raises(BucketError):
        open_bucket("/proc/nowhere").check_writable()


def test_a_relative_bucket_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_bucket("checkpoints").url == str(tmp_path / "checkpoints")
    monkeypatch.setenv("HOME", "/home/me")
    assert open_bucket("~/x").url == "/home/me/x"
