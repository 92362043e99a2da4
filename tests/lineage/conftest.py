"""Fixtures of this room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
def bucket(root: Path) -> Bucket:
    return open_bucket(str(root))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Where checkpoints are made before they are committed."""
    return tmp_path / "work"
