"""What the probe answers: the trainer's own choice for the settings, or why there is none."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.trainer.tiny import Job

from stepctl.models.memory import Gpu

pytestmark = pytest.mark.torch


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Ask about GPUs that are not there; their matrix products are not timed."""
    from stepctl.trainer import device, probe

    monkeypatch.setattr(probe, "_seconds", lambda dtype, where: 1.0)
    monkeypatch.setattr(probe, "PACKAGES", {"torch": "Tensor"})

    def asking(gpus: list[Gpu] | None = None, **settings: Any) -> dict[str, Any]:
        if gpus is not None:
            monkeypatch.setattr(device, "visible_gpus", lambda: gpus)
        out = io.BytesIO()
        assert probe.serve(io.BytesIO(msgspec.json.encode(settings) if settings else b""), out) == 0
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    return asking


def gpus(*sizes: int) -> list[Gpu]:
    return [Gpu(i, f"G{i}", size, (8, 6)) for i, size in enumerate(sizes)]


def test_nothing_asked_is_the_defaults(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask([])
    assert (answer["device"], answer["precision"], answer["refused"], answer["gpus"]) == ("cpu", "fp32", None, [])


def test_the_gpus_and_the_choice_among_them(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask(gpus(1 << 34, 1 << 35), gpu_ids=[1])
    assert (answer["device"], answer["precision"]) == ("cuda:1", "bf16")
    assert answer["gpus"][1] == {"index": 1, "name": "G1", "memory_bytes": 1 << 35, "capability": "8.6"}


def test_what_cannot_be_had_is_said_and_the_rest_as_well(ask: Callable[..., dict[str, Any]]) -> None:
    answer = ask(gpus(1 << 34), gpu_ids=[3])
    assert answer["device"] is None
    assert answer["refused"]["exit_code"] == 2
    assert "GPU 3" in answer["refused"]["message"]
    assert (len(answer["gpus"]), answer["packages"].keys()) == (1, {"torch"})


def test_a_model_is_measured_and_placed_as_the_job_would(ask: Callable[..., dict[str, Any]], job: Job) -> None:
    model = msgspec.to_builtins(job.spec.model)
    lora = msgspec.to_builtins(job.spec.lora)
    fits = {"model": model, "lora": lora, "max_length": 8}
    assert ask(gpus(1 << 30, 1 << 30), **fits)["device"] == "cuda:0"
    assert ask(gpus(120_000, 120_000, 120_000), **fits)["device"] == "cuda:0,cuda:1,cuda:2"
    refused = ask(gpus(10_000, 10_000), **fits)["refused"]
    assert (refused["code"], refused["exit_code"]) == ("does_not_fit", 2)
