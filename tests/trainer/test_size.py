"""The measured size is the loaded model's, and what transformers makes of our budgets stays on the GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.tiny import Job

from stepctl.models.memory import Gpu, Size, arrange

pytestmark = pytest.mark.torch


def measured(job: Job, max_length: int = 1024) -> Size:
    from stepctl.trainer.size import measure

    return measure(job.spec.model, job.spec.lora, max_length, None)


def test_the_measure_is_that_of_the_loaded_model(job: Job) -> None:
    engine = job.load()
    trainable = engine._ready()[1]
    adapter = sum(p.numel() for p in trainable.parameters.values())
    size = measured(job)
    assert size.adapter == adapter
    assert size.parameters == sum(p.numel() for p in trainable.model.parameters()) - adapter
    assert size.block == 300 * 32
    # What the model takes is less than what the settings let through.
    assert (size.tokens, measured(job, 64).tokens) == (256, 64)


def test_a_head_of_its_own_counts_twice(tmp_path: Path, job: Job) -> None:
    import msgspec
    from transformers import AutoModelForCausalLM, LlamaConfig

    from stepctl.jobs.spec import ModelSpec
    from stepctl.trainer.size import measure

    config = LlamaConfig.from_pretrained(job.spec.model.source, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    spec = msgspec.structs.replace(job.spec.model, source=str(tmp_path))
    assert isinstance(spec, ModelSpec)
    assert measure(spec, job.spec.lora, 8, None).parameters == measured(job).parameters + 300 * 32


def test_a_folder_without_weights_is_named_as_when_loading(tmp_path: Path, job: Job) -> None:
    import msgspec

    from stepctl.base.errors import UsageError
    from stepctl.trainer.size import measure

    with pytest.raises(UsageError, match=r"has no config\.json"):
        measure(msgspec.structs.replace(job.spec.model, source=str(tmp_path)), job.spec.lora, 8, None)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("memory", [(11, 11), (8, 8, 8), (9, 13), (13, 9), (5, 16, 5), (16, 5), (6, 6, 6, 6)])
def test_transformers_puts_a_spread_model_on_the_gpus_alone(memory: tuple[int, ...], tied: bool) -> None:
    """The real device map for GPUs that are not there: a model of about 14 GiB in bf16 that none of them holds."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.integrations.accelerate import _get_device_map

    from stepctl.trainer.device import on_gpus
    from stepctl.trainer.size import _largest_block, _weights

    config = LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=32000,
        tie_word_embeddings=tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    size = Size(config.to_dict(), _weights(model), _largest_block(model), 1_000_000, 512)
    gpus = [Gpu(i, f"G{i}", gib << 30, (9, 0)) for i, gib in enumerate(memory)]
    placement = on_gpus(gpus, "auto", size)
    assert placement.spread
    loading: dict[str, Any] = placement.loading
    found = _get_device_map(model, loading["device_map"], loading["max_memory"], None)
    assert set(found.values()) <= set(range(len(memory))), found
    assert len(set(found.values())) > 1
    used = dict.fromkeys(range(len(memory)), 0)
    modules = dict(model.named_modules())
    tied_names = set(getattr(model, "all_tied_weights_keys", {}))
    for name, device in found.items():
        weights = [(f"{name}.{n}", p) for n, p in modules[name].named_parameters()]
        used[device] += sum(2 * p.numel() for n, p in weights if n not in tied_names)
    assert all(used[gpu.index] <= gpu.usable for gpu in gpus)
    assert arrange(gpus, size, 2).budgets == loading["max_memory"]
