"""A model behind accelerate's hooks, as when it is spread over GPUs; here all of them point to the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.tiny import Job, make_rows, run

from stepctl.base.files import sha256_file

pytestmark = pytest.mark.torch

DEVICE_MAP = {
    "model.embed_tokens": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
}


def test_hooks_change_no_step_and_stay_for_the_next(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls and a held-out loss through the engine, with and without the hooks of a spread model."""
    from accelerate import dispatch_model

    from stepctl.trainer import model

    job, rows, real = job.but(grad_accum=2, lora={"dropout": 0.1}), make_rows(6), model.load_base
    losses: dict[str, list[float]] = {}
    for name in ("whole", "hooked"):
        if name == "hooked":
            monkeypatch.setattr(model, "load_base", lambda *a: dispatch_model(real(*a), DEVICE_MAP, force_hooks=True))
        engine = job.load()
        base = engine._ready()[1].model.get_base_model()
        forward = base.forward
        assert hasattr(base.model.layers[1].self_attn.q_proj.base_layer, "_hf_hook") == (name == "hooked")
        losses[name] = [step.loss for step in (*run(engine, rows[:4]), *run(engine, rows[4:], 2))]
        losses[name].append(engine.evaluate(make_rows(2, seed=3)))
        assert base.forward == forward
        assert hasattr(base, "_hf_hook") == (name == "hooked")
        engine.save(tmp_path / name)
    assert losses["whole"] == losses["hooked"]
    assert len(losses["hooked"]) == 4
    for file in (tmp_path / "whole").iterdir():
        assert sha256_file(file) == sha256_file(tmp_path / "hooked" / file.name)


def test_a_spread_placement_is_loaded_and_checked_by_the_engine(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of ``load``: what transformers is told, and that a layer on the CPU is refused."""
    import torch
    from transformers import AutoModelForCausalLM

    from stepctl.base.errors import UsageError
    from stepctl.models.memory import Gpu
    from stepctl.trainer import device

    told: dict[str, Any] = {}
    real = AutoModelForCausalLM.from_pretrained

    def from_pretrained(source: str, **kw: Any) -> Any:
        told.update(device_map=kw.pop("device_map"), max_memory=kw.pop("max_memory"))
        model, info = real(source, **kw)
        model.hf_device_map = {"model": 0, "lm_head": "cpu"}
        return model, info

    # The model and its adapter take about 140,000 bytes in fp32: too many for one.
    gpus = [Gpu(i, f"G{i}", 120_000, (7, 5)) for i in range(3)]
    monkeypatch.setattr(device, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(device, "settle", lambda placement: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(UsageError, match="the first lm_head, would be on cpu") as caught:
        job.but(device="auto").load()
    assert caught.value.code == "does_not_fit"
    assert told["device_map"] == "auto"
    assert sorted(told["max_memory"]) == [0, 1, 2]


def test_an_optimizer_goes_on_with_parameters_on_several_gpus() -> None:
    """Tensors without data stand for those on GPUs: torch judges their devices as it does real ones."""
    import torch
    from accelerate.optimizer import move_to_device
    from torch._subclasses.fake_tensor import FakeTensorMode

    from stepctl.trainer.model import make_optimizer

    with FakeTensorMode(), torch.no_grad():
        where = ["cuda:0", "cuda:1"]
        parameters = {d: torch.nn.Parameter(torch.zeros(2, 3, device=d), requires_grad=False) for d in where}
        optimizer = make_optimizer(parameters, 1e-3, 0.0)
        optimizer.param_groups[0]["foreach"] = True
        for name, parameter in parameters.items():
            parameter.grad = torch.zeros(2, 3, device=name)
            moments = {m: torch.zeros(2, 3, device=name) for m in ("exp_avg", "exp_avg_sq")}
            optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}
        # What accelerate does to an optimizer that it prepares.
        optimizer.load_state_dict(move_to_device(optimizer.state_dict(), torch.device("cuda:0")))
        for name, parameter in parameters.items():
            found = {key: str(value.device) for key, value in optimizer.state[parameter].items()}
            assert found == {"step": "cpu", "exp_avg": name, "exp_avg_sq": name}
            # A moved tensor without data has lost its value.
            optimizer.state[parameter]["step"] = torch.tensor(1.0)
        assert str(torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0).device) == "cuda:0"
        optimizer.step()
