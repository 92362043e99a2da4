"""Fixtures of this room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.doubles.hub import Hub

from stepctl.lineage.buckets import Bucket, open_bucket


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is lost here, and syncing takes most of the time; what must be synced when has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the bucket; it does not exist yet."""
    return tmp_path / "bucket"


@pytest.fixture
def bucket(request: pytest.FixtureRequest, root: Path) -> Bucket:
    """A new bucket in a directory; with ``both``, also one of the emulated Hub."""
    if getattr(request, "param", "directory") == "hub":
        return open_bucket(request.getfixturevalue("url"), Hub.write, new=True)
    return open_bucket(str(root))


@pytest.fixture
def url(hub: Hub, tmp_path: Path) -> str:
    """A bucket of the emulated Hub that does not exist yet, with a prefix."""
    return f"hf://buckets/u/{tmp_path.name}/pre"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Where checkpoints are made before they are committed."""
    return tmp_path / "work"
