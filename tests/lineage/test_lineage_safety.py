"""A checkpoint that lies: nothing of it is read outside its folder, and sizes come before content."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.lineage.making import extend, files_below

from stepctl.base.errors import DamagedCheckpoint, StepctlError
from stepctl.lineage.buckets import Bucket
from stepctl.lineage.store import fetch_checkpoint, look, read_lineage, verify
from stepctl.lineage.tree import LARGEST_RECORD

NAME = "00000001-a"
TB = 10**12


@pytest.fixture
def stored(bucket: Bucket, root: Path, work: Path) -> Path:
    """The folder of the only checkpoint; outside it lies what must not be read."""
    extend(bucket, work, "a")
    (root / "secret").write_text("secret")
    return root / "main" / "checkpoints" / NAME


def rewrite(stored: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = stored / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def refused(bucket: Bucket, to: Path) -> str:
    """The head, a copy and the check of all: each refuses, and nothing is copied."""
    with pytest.raises(DamagedCheckpoint):
        read_lineage(bucket, "main")
    with pytest.raises(DamagedCheckpoint) as error:
        fetch_checkpoint(bucket, "main", NAME, None, to)
    assert verify(bucket, "main").damages
    assert files_below(to) == {}
    assert look(bucket, "main").problem is not None
    return error.value.message


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "../../../secret", "/etc/passwd", "a/../../x", "a\\b", "C:\\x", "a//b", "./a", ".", ""),
        *("a\nb", "a\0b", "manifest.json", ".tmp-0", "reference/.tmp-0"),
    ],
)
def test_a_manifest_that_lists_another_path(bucket: Bucket, stored: Path, work: Path, path: str) -> None:
    rewrite(stored, lambda m: m["files"][0].update(path=path))
    assert "cannot be a file of a checkpoint" in refused(bucket, work / "to")


def test_a_manifest_that_lists_a_file_twice(bucket: Bucket, stored: Path, work: Path) -> None:
    rewrite(stored, lambda m: m["files"].append(m["files"][0]))
    assert "twice" in refused(bucket, work / "to")


@pytest.mark.parametrize("size", [10 * TB, 0, -1, 2**70])
def test_a_manifest_with_another_size(bucket: Bucket, stored: Path, work: Path, size: int) -> None:
    rewrite(stored, lambda m: m["files"][0].update(size=size))
    assert f"the manifest says {size}" in refused(bucket, work / "to")


@pytest.mark.parametrize("size", ["10", 1.5, True, None])
def test_a_manifest_with_no_size(bucket: Bucket, stored: Path, work: Path, size: object) -> None:
    rewrite(stored, lambda m: m["files"][0].update(size=size))
    assert "cannot be read" in refused(bucket, work / "to")


def test_a_file_that_really_has_10_tb(bucket: Bucket, stored: Path, work: Path) -> None:
    """The manifest and the listing agree: there is no room for it, which is said before a byte is copied."""
    os.truncate(stored / "adapter.safetensors", 10 * TB)
    rewrite(stored, lambda m: m["files"][0].update(size=10 * TB))
    with pytest.raises(StepctlError, match="are free") as error:
        fetch_checkpoint(bucket, "main", NAME, None, work / "to")
    assert error.value.code == "disk_full"
    assert files_below(work / "to") == {}


def test_a_manifest_of_many_bytes_is_not_read(bucket: Bucket, stored: Path, work: Path) -> None:
    os.truncate(stored / "manifest.json", LARGEST_RECORD + 1)
    assert f"has {LARGEST_RECORD + 1} bytes, which no manifest has" in refused(bucket, work / "to")


def test_a_choice_of_many_bytes_is_not_read(bucket: Bucket, root: Path, stored: Path) -> None:
    (root / "main" / "choices").mkdir()
    path = root / "main" / "choices" / "000001.json"
    path.touch()
    os.truncate(path, LARGEST_RECORD + 1)
    with pytest.raises(StepctlError, match="cannot be read"):
        read_lineage(bucket, "main")


@pytest.mark.parametrize("file", ["adapter.safetensors", "reference/adapter.safetensors", "ledger.jsonl"])
def test_a_link_in_the_place_of_a_file(bucket: Bucket, root: Path, stored: Path, work: Path, file: str) -> None:
    """It even leads to the right bytes."""
    (stored / file).rename(root / "right")
    (stored / file).symlink_to(root / "right")
    assert "link" in refused(bucket, work / "to")


def test_only_what_is_wanted_is_checked_and_copied(bucket: Bucket, stored: Path, work: Path) -> None:
    (stored / "reference" / "adapter.safetensors").write_bytes(b"cut")
    fetch_checkpoint(bucket, "main", NAME, None, work / "to", only=["adapter.safetensors"])
    assert set(files_below(work / "to")) == {"adapter.safetensors"}
    with pytest.raises(DamagedCheckpoint, match="reference"):
        fetch_checkpoint(bucket, "main", NAME, None, work / "all")
