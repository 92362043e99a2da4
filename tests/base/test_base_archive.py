"""Trees as streams: whole and equal, or refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepctl.base.archive import (
    ArchiveError,
    files_below,
    make_durable,
    pack,
    place,
    tree_digest,
    unpack,
)


class Bytes:
    """A stream that comes in pieces of any size."""

    def __init__(self, data: bytes, piece: int = 1 << 20) -> None:
        self.data, self.piece = data, piece

    def recv_into(self, room: memoryview) -> int:
        part, self.data = self.data[: min(len(room), self.piece)], self.data[min(len(room), self.piece) :]
        room[: len(part)] = part
        return len(part)


def packed(root: Path) -> bytes:
    parts: list[bytes] = []
    pack(files_below(root), lambda part: parts.append(bytes(part)))
    return b"".join(parts)


def tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


FILES = {"a": b"", "b/c": b"line\n" * 9, "b/d e": b'{"sha256": 1}\n', "b/f/ü": os.urandom(70_000)}


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_a_tree_comes_back(tmp_path: Path, piece: int) -> None:
    (tmp_path / "to").mkdir()
    data = packed(tree(tmp_path / "from", FILES))
    seen: list[tuple[int, int]] = []
    digest = unpack(Bytes(data, piece), tmp_path / "to", lambda done, total: seen.append((done, total)))
    assert content(tmp_path / "to") == FILES
    assert digest == hashlib.sha256(data[: data.rindex(b'{"sha256"')]).hexdigest()
    total = sum(map(len, FILES.values()))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_many_files_and_a_large_one(tmp_path: Path) -> None:
    files = {f"d{i % 7}/f{i}": os.urandom(i) for i in range(300)} | {"large": os.urandom(5_000_001)}
    (tmp_path / "to").mkdir()
    unpack(Bytes(packed(tree(tmp_path / "from", files)), 65_536), tmp_path / "to")
    assert content(tmp_path / "to") == files


def test_a_stream_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    data = packed(tree(tmp_path / "from", {"a": b"12345", "b/c": b"x" * 40}))
    for size in range(len(data)):
        (to := tmp_path / f"to{size}").mkdir()
        with pytest.raises(ArchiveError):
            unpack(Bytes(data[:size]), to)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_stream_with_any_bit_changed_is_refused(
    tmp_path_factory: pytest.TempPathFactory, where: int, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("bits")
    data = bytearray(packed(tree(folder / "from", {"a": b"12345", "b/c": b"x" * 40})))
    data[where % len(data)] ^= 1 << bit
    (folder / "to").mkdir()
    try:
        unpack(Bytes(bytes(data)), folder / "to")
    except (ArchiveError, OSError):
        return
    # A name of the last line may be written in another way; what is unpacked is the same then.
    assert content(folder / "to") == {"a": b"12345", "b/c": b"x" * 40}


def made(*lines: dict[str, Any], data: bytes = b"") -> bytes:
    text = b"".join(json.dumps(each).encode() + b"\n" + (data if "path" in each else b"") for each in lines)
    return text + json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n"


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../x", "./x", "a//x", "", "a/", "..", ".", "a\0b", 7, None, ["x"]], ids=repr
)
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: object) -> None:
    (tmp_path / "to").mkdir()
    with pytest.raises(ArchiveError):
        unpack(Bytes(made({"bytes": 1, "files": 1}, {"path": name, "size": 1}, data=b"x")), tmp_path / "to")
    assert content(tmp_path) == {}


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    twice = made({"bytes": 2, "files": 2}, {"path": "x", "size": 1}, {"path": "x", "size": 1}, data=b"x")
    with pytest.raises(OSError, match="exists"):
        unpack(Bytes(twice), tmp_path / "to")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello\n",
        b"[]\n",
        b"x" * 200_000,
        made({"bytes": True, "files": 0}),
        made({"files": 0}),
        made({"bytes": -1}),
    ],
    ids=range(7),
)
def test_something_else_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "to").mkdir()
    with pytest.raises(ArchiveError):
        unpack(Bytes(data), tmp_path / "to")


def test_an_error_in_the_place_of_a_stream_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="gone"):
        unpack(Bytes(b'{"error": "gone"}\n'), tmp_path)


def test_links_are_followed_only_where_that_is_asked_for(tmp_path: Path) -> None:
    root = tree(tmp_path / "from", {"a": b"1"})
    (tmp_path / "elsewhere").write_bytes(b"2")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArchiveError, match="links are not followed"):
        files_below(root)
    assert [(file.name, file.size) for file in files_below(root, links=True)] == [("a", 1), ("b", 1)]
    (root / "b").unlink()
    os.mkfifo(root / "b")
    with pytest.raises(ArchiveError):
        files_below(root, links=True)
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(ArchiveError):
        files_below(tmp_path, ["link"])


def test_temporary_files_are_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path / "from", {"a": b"1", ".tmp-x": b"2", "b/.tmp-y/z": b"3"})
    assert [file.name for file in files_below(root)] == ["a"]


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    files = files_below(tree(tmp_path / "from", {"a": b"12345"}))
    (tmp_path / "from/a").write_bytes(b"1")
    with pytest.raises(ArchiveError, match="became shorter"):
        pack(files, lambda _: None)


def test_digests_tell_trees_apart(tmp_path: Path) -> None:
    trees = [{"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""}, {"a": b"", "b": b"1"}]
    digests = [tree_digest(files_below(tree(tmp_path / str(i), files))) for i, files in enumerate(trees)]
    assert len(set(digests)) == len(trees)
    assert tree_digest(files_below(tree(tmp_path / "again", trees[0]))) == digests[0]


def test_a_folder_takes_another_s_place(tmp_path: Path) -> None:
    new, old = tree(tmp_path / "new", {"a": b"new"}), tree(tmp_path / "old", {"a": b"old", "b": b"old"})
    place(new, old)
    assert content(tmp_path) == {"old/a": b"new"}
    place(tree(tmp_path / "next", {"c": b"1"}), tmp_path / "none")
    assert content(tmp_path / "none") == {"c": b"1"}


@pytest.mark.parametrize("count", [1, 100])
def test_durable_files_stay_as_they_are(tmp_path: Path, count: int) -> None:
    files = {f"d/e/f{i}": b"x" for i in range(count)}
    make_durable(tree(tmp_path, files), list(files))
    assert content(tmp_path) == files
