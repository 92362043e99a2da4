"""What a model asks of GPUs, measured on its own modules without loading a weight."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from stepctl.config.model import LoraSettings
from stepctl.jobs.spec import ModelSpec
from stepctl.models.memory import Size
from stepctl.trainer.model import check_folder, explain, local_folder


def measure(model: ModelSpec, lora: LoraSettings, max_length: int, hf_token: str | None, texts: int = 1) -> Size:
    """The size of ``model`` and its adapter; examples are ``texts`` of ``max_length`` tokens, or what the model takes.

    Raises:
        StepctlError: as ``load_base``, of what its configuration tells.
    """
    folder = local_folder(model.source)
    if folder is not None:
        check_folder(folder)
    try:
        config = AutoConfig.from_pretrained(
            model.source,
            revision=model.revision or "main",
            token=hf_token,
            trust_remote_code=model.trust_remote_code,
        )
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, trust_remote_code=model.trust_remote_code)
    except Exception as error:
        raise explain(model, error) from error
    limit = getattr(config.get_text_config(), "max_position_embeddings", None) or max_length
    return Size(
        config=config.to_dict(),
        parameters=_weights(empty),
        block=_largest_block(empty),
        adapter=_adapter(empty, lora),
        tokens=texts * min(max_length, limit),
    )


def _weights(model: Any) -> int:
    tied = getattr(model, "all_tied_weights_keys", {})
    return sum(p.numel() for name, p in model.named_parameters() if name not in tied)


def _largest_block(model: Any) -> int:
    """Weights of the largest module that may not be split (a decoder's layer), or that has no parts."""
    whole = model._no_split_modules or ()
    blocks = [m for m in model.modules() if type(m).__name__ in whole or not any(True for _ in m.children())]
    return max((sum(p.numel() for p in m.parameters()) for m in blocks), default=0)


def _adapter(model: Any, lora: LoraSettings) -> int:
    sides = 0
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in lora.target_modules and name not in lora.target_modules:
            continue
        if isinstance(module, torch.nn.Linear):
            sides += module.in_features + module.out_features
        elif isinstance(module, Conv1D):
            sides += sum(module.weight.shape)
    return lora.r * sides
