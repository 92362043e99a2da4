"""A model behind accelerate's hooks, as when it is spread over GPUs; here all of them point to the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.tiny import Job, make_rows

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


def trainable(job: Job, *, hooks: bool) -> Any:
    from accelerate import dispatch_model

    from stepctl.trainer import device, model

    spec = job.spec
    placement = device.choose("cpu", "fp32")
    base = model.load_base(spec.model, placement, None)
    if hooks:
        dispatch_model(base, DEVICE_MAP, force_hooks=True)
    adapted = model.add_adapter(base, spec.lora, spec.train.seed, spec.model.source, None)
    parameters = model.adapter_parameters(adapted)
    optimizer = model.make_optimizer(parameters, spec.train.learning_rate, 0.0)
    return model.Trainable(adapted, parameters, optimizer, placement)


def test_hooks_change_no_step_and_stay_for_the_next(job: Job, tmp_path: Path) -> None:
    from stepctl.trainer import loop, state
    from stepctl.trainer.environment import quiet

    quiet()
    job = job.but(grad_accum=2, lora={"dropout": 0.1})
    losses: dict[bool, list[float]] = {}
    for hooks in (False, True):
        made, losses[hooks] = trainable(job, hooks=hooks), []

        def on_step(step: Any, said: list[float] = losses[hooks]) -> bool:
            said.append(step.loss)
            return True

        base = made.model.get_base_model()
        before = base.forward
        for part in (make_rows(6)[:4], make_rows(6)[4:]):
            loop.train(made, part, job.spec.train, on_step)
            assert (base.forward == before) is True
        losses[hooks].append(loop.evaluate(made, make_rows(2, seed=3)))
        folder = tmp_path / str(hooks)
        folder.mkdir()
        state.write(folder, made, job.spec.train)
        assert hasattr(base, "_hf_hook") == hooks
        assert hasattr(base.model.layers[0].self_attn.q_proj.base_layer, "_hf_hook") == hooks
        assert made.model.hf_device_map == DEVICE_MAP if hooks else True
    assert losses[True] == losses[False]
    assert len(losses[True]) == 4
    for file in (tmp_path / "True").iterdir():
        assert sha256_file(file) == sha256_file(tmp_path / "False" / file.name)


def test_a_spread_placement_is_loaded_and_checked_by_the_engine(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of ``load``: what transformers is told, and that a layer on the CPU is refused."""
    import torch
    from transformers import AutoModelForCausalLM

    from stepctl.base.errors import UsageError
    from stepctl.models.memory import Gpu
    from stepctl.trainer import device
    from stepctl.trainer.torch_engine import TorchEngine

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
    engine = TorchEngine()
    engine.imports()
    with pytest.raises(UsageError, match="the first lm_head, would be on cpu") as caught:
        engine.load(job.but(device="auto").spec, None)
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
