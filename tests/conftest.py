"""Projects for tests that call the command line, and the emulated Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.doubles.hub import Hub
from tests.doubles.hub.client import fresh_client
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


@pytest.fixture(scope="session")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """One process for all tests: each has a bucket of its own."""
    with Hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def plain_hub(running_hub: Hub) -> Iterator[Hub]:
    """The Hub without faults, with an empty log; for clients in processes of their own."""
    running_hub.clock()
    running_hub.settings()
    running_hub.clear_requests()
    yield running_hub
    running_hub.faults()
    running_hub.mend()


@pytest.fixture
def hub(plain_hub: Hub, tmp_path: Path) -> Iterator[Hub]:
    """The same for the client library in the tests' own process, which begins anew."""
    with fresh_client(tmp_path / "home"):
        os.environ.update(plain_hub.env(tmp_path / "home") | {"XDG_CACHE_HOME": str(tmp_path / "cache")})
        yield plain_hub
