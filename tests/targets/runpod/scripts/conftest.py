"""A guarded pod under each shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.targets.runpod.scripts.container import Container
from tests.targets.runpod.scripts.guarded import SHELLS, GuardedPod
from tests.targets.runpod.scripts.stub_api import StubApi

# A pod is Linux, and so is what its scripts read of /proc.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(params=sorted(SHELLS))
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def api() -> Iterator[StubApi]:
    stub = StubApi()
    yield stub
    stub.close()


@pytest.fixture
def pod(tmp_path: Path, shell: str, api: StubApi) -> Iterator[GuardedPod]:
    guarded = GuardedPod(tmp_path, shell, api)
    yield guarded
    guarded.close()


@pytest.fixture
def container(tmp_path: Path, shell: str, api: StubApi) -> Iterator[Container]:
    made = Container(tmp_path, shell, api)
    yield made
    made.kill()
