"""One sandbox for each worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doubles.runpod import levels
from tests.matrix.rig import Rented, Rig, remove


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    levels.need()
    with Rig(tmp_path_factory.mktemp("matrix")).running() as rig:
        yield rig


@pytest.fixture
def project(rig: Rig, tmp_path: Path) -> Iterator[Rented]:
    """A project with one step in its lineage, on a sandbox without any past."""
    yield rig.project(tmp_path)
    remove(tmp_path)
