"""The emulated Runpod without real pods, one process for each file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.doubles.runpod import Sandbox
from tests.doubles.runpod.asking import client


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(records: Sandbox) -> Iterator[Sandbox]:
    records.reset()
    yield records
    records.check()


@pytest.fixture
def api(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with client(sandbox) as http:
        yield http
