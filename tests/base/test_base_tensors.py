"""A safetensors file is judged by its header, and the library agrees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors import SafetensorError, deserialize
from tests.doubles.tensors import pack, tensors

from stepctl.base.tensors import BrokenTensors, Tensor, read_header

TWO = {"a": (2, 3), "b": (4,)}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4096\n"


def one(offsets: list[object], *, shape: object = None, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": [2] if shape is None else shape, "data_offsets": offsets}


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(tensors(TWO))
    assert read_header(path) == {"a": Tensor("F32", (2, 3), 0, 24), "b": Tensor("F32", (4,), 24, 40)}
    path.write_bytes(
        pack({"__metadata__": {"format": "pt"}, "none": one([0, 0], shape=[0]), "a": one([0, 8])}, b"8bytes..")
    )
    assert set(read_header(path)) == {"none", "a"}
    assert {name for name, _ in deserialize(path.read_bytes())} == {"none", "a"}


WRONG = {
    "empty": (b"", "is empty"),
    "three bytes": (b"abc", "is cut: it has 3 bytes"),
    "pointer": (LFS, "Git LFS pointer"),
    "a page": (b"<!DOCTYPE html><html></html>", "its header would have"),
    "header too large": (pack(b"{}", length=200_000_000), "would have 200000000 bytes"),
    "header cut": (pack({"a": one([0, 8])})[:30], "its header alone ends at"),
    "header is no JSON": (pack(b"{not json"), "is not JSON"),
    "header is not UTF-8": (pack(b'{"\xff": 1}'), "is not JSON"),
    "header is a list": (pack([]), "no JSON object"),
    "deep header": (pack(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "has a header"),
    "a name twice": (pack(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":null}', b"1"), "twice"),
    "data cut": (tensors(TWO)[:-20], "is cut"),
    "data too long": (tensors(TWO) + b"x", "is too long"),
    "overlap": (pack({"a": one([0, 8]), "b": one([4, 12])}, b"." * 12), "overlaps"),
    "gap": (pack({"a": one([0, 8]), "b": one([12, 20])}, b"." * 20), "leaves a gap"),
    "does not start at 0": (pack({"a": one([4, 12])}, b"." * 12), "leaves a gap"),
    "wrong size": (pack({"a": one([0, 12])}, b"." * 12), "gives a 12 bytes for F32"),
    "ends before it begins": (pack({"a": one([8, 0])}, b"." * 8), "gives a -8 bytes"),
    "negative": (pack({"a": one([-8, 0])}, b"." * 8), "does not describe a"),
    "a boolean": (pack({"a": one([False, True], shape=[1], dtype="U8")}, b"."), "does not describe a"),
    "a fraction": (pack({"a": one([0, 8.0])}, b"." * 8), "does not describe a"),
    "an endless shape": (pack({"a": one([0, 8], shape=[2**62, 2**62])}, b"." * 8), "gives a 8 bytes"),
    "unknown type": (pack({"a": one([0, 8], dtype="F33")}, b"." * 8), "does not describe a"),
    "no offsets": (pack({"a": {"dtype": "F32", "shape": [2]}}, b"." * 8), "does not describe a"),
    "no object": (pack({"a": 1}), "does not describe a"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, name: str) -> None:
    data, said = WRONG[name]
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(BrokenTensors, match=said):
        read_header(path)
    with pytest.raises((SafetensorError, ValueError)):
        deserialize(data)


def test_links_folders_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(tensors(TWO))
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(BrokenTensors, match="is a link"):
        read_header(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BrokenTensors, match="not a file"):
        read_header(tmp_path / "pipe")


def test_a_huge_file_is_judged_by_its_size(tmp_path: Path) -> None:
    """10 TB of nothing behind a small header: nothing but the header is read."""
    path = tmp_path / "t"
    path.write_bytes(tensors(TWO))
    os.truncate(path, 10 * 10**12)
    with pytest.raises(BrokenTensors, match="too long: it has 10000000000000 bytes"):
        read_header(path)
