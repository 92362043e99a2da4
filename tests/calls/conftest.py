"""A project that rents at the emulated provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doubles.runpod import Sandbox
from tests.targets.runpod.acting import Clock, Desk

from stepctl.calls.world import World
from stepctl.config.load import load_settings
from stepctl.targets.runpod import machine


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
        yield sandbox


@pytest.fixture
def desk(running: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    running.reset()
    monkeypatch.setenv("RUNPOD_API_KEY", running.key)
    desk = Desk(running, Clock(running.advance), tmp_path / "elsewhere")
    yield desk
    desk.close()
    running.check()


@pytest.fixture
def paced(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that are rented wait on the desk's clock too."""
    monkeypatch.setattr(machine, "Pace", lambda seconds, sleep: desk.clock.pace(seconds))


@pytest.fixture
def world(desk: Desk, tmp_path: Path) -> World:
    """A project with two targets that rent, of which ``cloud`` is the emulated provider's."""
    (tmp_path / "stepctl.toml").write_text(
        f'target = "other"\n[targets.other]\nkind = "runpod"\nmax_hours = 1\napi_url = "http://127.0.0.1:9/v2"\n'
        f'[targets.cloud]\nkind = "runpod"\nmax_hours = 1\npoll_seconds = 10\napi_url = "{desk.sandbox.url}"\n'
    )
    return World(load_settings({}, {}, tmp_path), now=desk.clock.now, wait=desk.clock.sleep)
