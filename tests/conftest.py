"""Projects for tests that call the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doubles.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose trainer is the stand-in."""
    return Project(tmp_path)
