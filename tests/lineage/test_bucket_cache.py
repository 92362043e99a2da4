"""Copies on this machine, without a Hub."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stepctl.base.files import sha256_file
from stepctl.lineage.buckets.cache import UNUSED_SEC, Cache, cache_root


def test_a_copy_is_kept_taken_and_checked(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "root", "url", "main", sha256_file)
    (tmp_path / "file").write_bytes(b"content")
    content = sha256_file(tmp_path / "file")
    assert not cache.take(content, tmp_path / "to")
    cache.put(content, tmp_path / "file")
    assert cache.take(content, tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == b"content"
    assert not Cache(tmp_path / "root", "url", "other", sha256_file).take(content, tmp_path / "to2")
    assert not Cache(tmp_path / "root", "url2", "main", sha256_file).take(content, tmp_path / "to2")
    (copy,) = (path for path in tmp_path.rglob(content))
    copy.write_bytes(b"changed")
    assert not cache.take(content, tmp_path / "to3")
    assert not (tmp_path / "to3").exists()
    assert not copy.exists()


@pytest.mark.parametrize("content", ["", "..", "../../../etc/passwd", "manifest.json"])
def test_what_is_no_hash_is_no_name(tmp_path: Path, content: str) -> None:
    cache = Cache(tmp_path / "root", "url", "main", lambda path: content)
    (tmp_path / "file").write_bytes(b"content")
    cache.put(content, tmp_path / "file")
    assert not cache.take(content, tmp_path / "to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_what_no_listing_names_goes_and_so_does_what_is_not_used(tmp_path: Path) -> None:
    caches = {name: Cache(tmp_path / "root", "url", name, sha256_file) for name in ("old", "used", "now")}
    contents = []
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(name.encode())
        contents.append(sha256_file(tmp_path / name))
        for cache in caches.values():
            cache.put(contents[-1], tmp_path / name)
    caches["now"].keep(contents[:1])
    assert [caches["now"].take(content, tmp_path / "to") for content in contents] == [True, False]
    old = time.time() - UNUSED_SEC - 60
    for folder in (tmp_path / "root/buckets").iterdir():
        os.utime(folder, (old, old))
    caches["used"].forget()
    caches["now"].forget()
    assert [cache.take(contents[0], tmp_path / "to") for cache in caches.values()] == [False, True, False]


def test_where_copies_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_root() == Path("/home/me/.cache/stepctl")
    monkeypatch.setenv("XDG_CACHE_HOME", "/big")
    assert cache_root() == Path("/big/stepctl")
    monkeypatch.setenv("XDG_CACHE_HOME", "")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_root().name == f"stepctl-{os.getuid()}"
