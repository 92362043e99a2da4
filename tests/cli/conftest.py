"""The emulated Runpod with real pods, one process for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doubles.rented import Cloud, Rented, Stage
from tests.doubles.runpod import Sandbox, levels


@pytest.fixture(scope="session")
def running_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    levels.need()
    stage = Stage(tmp_path_factory.mktemp("stage"))
    root = tmp_path_factory.mktemp("runpod")
    with Sandbox(root, pods="netns", show=stage.shown, python=True) as sandbox:
        yield Cloud(sandbox, stage)


@pytest.fixture
def cloud(running_cloud: Cloud) -> Iterator[Cloud]:
    """Nothing is rented, and nothing goes wrong yet."""
    running_cloud.reset()
    yield running_cloud
    running_cloud.sandbox.check()


@pytest.fixture
def rented(cloud: Cloud, tmp_path: Path) -> Rented:
    """A project whose target rents pods."""
    return Rented(tmp_path, cloud)
