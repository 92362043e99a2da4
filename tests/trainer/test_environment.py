"""The process is set up before anything heavy is imported."""

from __future__ import annotations

import os
import sys
import types

import pytest

from stepctl.base.errors import UsageError
from stepctl.trainer import environment


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))


def test_telemetry_is_off_even_where_it_was_turned_on() -> None:
    os.environ.update(HF_HUB_DISABLE_TELEMETRY="0", DO_NOT_TRACK="0")
    environment.prepare()
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert os.environ["DISABLE_SAFETENSORS_CONVERSION"] == "1"


def test_a_hub_client_imported_earlier_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = types.SimpleNamespace(HF_HUB_DISABLE_TELEMETRY=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)  # type: ignore[arg-type]
    environment.prepare()
    assert constants.HF_HUB_DISABLE_TELEMETRY is True


def test_settings_of_accelerate_do_not_reach_the_training() -> None:
    os.environ.update(ACCELERATE_MIXED_PRECISION="bf16", ACCELERATE_USE_CPU="true", LOCAL_RANK="0", WORLD_SIZE="1")
    environment.prepare()
    assert not [n for n in os.environ if n.startswith("ACCELERATE_")]
    assert "LOCAL_RANK" not in os.environ


def test_one_of_several_processes_does_not_train() -> None:
    os.environ["WORLD_SIZE"] = "2"
    with pytest.raises(UsageError, match="one of 2 processes"):
        environment.prepare()
