"""The emulated Runpod on a clock that only waiting moves, and a run's record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doubles.runpod import Sandbox
from tests.targets.runpod.acting import Clock, Desk


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running: Sandbox) -> Iterator[Sandbox]:
    running.reset()
    yield running
    running.check()


@pytest.fixture
def desk(sandbox: Sandbox, tmp_path: Path) -> Iterator[Desk]:
    """A client with its record, its pace and its ear."""
    desk = Desk(sandbox, Clock(sandbox.advance), tmp_path / "run")
    yield desk
    desk.close()
