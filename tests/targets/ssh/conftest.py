"""A plain sshd for all tests of a module, and rigs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.relay import Relay
from tests.doubles.sshd import Sshd
from tests.targets.ssh.rig import Rig


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def rig(tmp_path: Path, sshd: Sshd) -> Rig:
    return Rig(tmp_path, sshd)


@pytest.fixture
def relay(sshd: Sshd) -> Iterator[Relay]:
    between = Relay(sshd.port)
    yield between
    between.close()


@pytest.fixture
def rigs(tmp_path: Path, sshd: Sshd) -> Callable[..., Rig]:
    """Rigs with other rows or runs."""

    def make(**kw: Any) -> Rig:
        return Rig(tmp_path, sshd, **kw)

    return make
