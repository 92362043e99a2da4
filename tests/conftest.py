"""Projects for tests that call the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.project import Project
from tests.doubles.trained import Chain


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project whose trainer is the stand-in."""
    return Project(tmp_path)


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return Chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def trained(project: Project, chain: Chain) -> Callable[[int], list[str]]:
    """``trained(3)``: the project after three runs of one step each, keys k0 to k2; their checkpoints."""
    return lambda count: chain.into(project, count)
