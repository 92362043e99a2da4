"""Log-probabilities of a text's supervised tokens, and who reads it: the policy or the reference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepctl.traces.rows import Tokens
from stepctl.trainer.device import Placement
from stepctl.trainer.model import Trainable

IGNORED = -100


def nll(model: Any, text: Tokens, placement: Placement) -> torch.Tensor:
    """Sum of ``-log p(token | tokens before it)`` over the supervised tokens of a text, in nats, fp32, a scalar.

    Args:
        model: a causal language model, perhaps with an adapter.
        text: its first label is not read: no position predicts it.
        placement: bf16 is used through autocast.
    """
    at = [i for i, label in enumerate(text.labels[1:]) if label != IGNORED]
    targets = torch.tensor([text.labels[i + 1] for i in at], dtype=torch.long)
    device = placement.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=placement.precision == "bf16"):
        logits = _logits(model, torch.tensor([text.input_ids], dtype=torch.long, device=device), at, placement)
    return torch.nn.functional.cross_entropy(logits.float(), targets.to(logits.device), reduction="sum").to(device)


def _logits(model: Any, input_ids: torch.Tensor, at: list[int], placement: Placement) -> torch.Tensor:
    """The logits at the positions ``at`` alone, (len(at), vocabulary): the output layer is a large share of the work.

    Args:
        input_ids: (1, tokens).
    """
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "use_cache": False}
    positions = torch.tensor(at, device=input_ids.device)
    if "logits_to_keep" not in inspect.signature(model.get_base_model().forward).parameters:
        logits: torch.Tensor = model(**inputs).logits[0]
    elif placement.spread:
        # Positions would have to be on the device of the last layer: a number keeps all from the first on.
        logits = model(**inputs, logits_to_keep=input_ids.shape[1] - at[0]).logits[0]
        positions = positions - at[0]
    else:
        kept: torch.Tensor = model(**inputs, logits_to_keep=positions).logits[0]
        return kept
    return logits[positions.to(logits.device)]


def rehearse(trainable: Trainable) -> None:
    """One forward and backward over a few tokens, which change nothing: what the model cannot do shows."""
    ids = [0] * 16
    try:
        nll(trainable.model, Tokens(input_ids=ids, labels=[IGNORED, *ids[1:]]), trainable.placement).backward()
    finally:
        for parameter in trainable.parameters.values():
            parameter.grad = None


def policy_logp(trainable: Trainable, text: Tokens) -> torch.Tensor:
    """Log-probability of a text's supervised tokens under the policy, a scalar with gradient where there is one.

    The base model's own dropout stays off, since the reference has none; the adapter's is on while training.
    """
    with _adapter_dropout(trainable.model, on=trainable.model.training):
        return -nll(trainable.model, text, trainable.placement)


def reference_logp(trainable: Trainable, text: Tokens) -> torch.Tensor:
    """The same under the reference: without gradient or dropout. Comes before the policy's of the same backward."""
    with torch.no_grad(), _adapter_dropout(trainable.model, on=False), _reference(trainable):
        return -nll(trainable.model, text, trainable.placement)


@contextmanager
def _reference(trainable: Trainable) -> Iterator[None]:
    """Make the model the reference for a while: the adapter that the lineage started from, or the base model."""
    if trainable.reference is None:
        with trainable.model.disable_adapter():
            yield
        return
    own = {name: parameter.data for name, parameter in trainable.parameters.items()}
    try:
        for name, parameter in trainable.parameters.items():
            parameter.data = trainable.reference[name]
        yield
    finally:
        for name, parameter in trainable.parameters.items():
            parameter.data = own[name]


@contextmanager
def _adapter_dropout(model: Any, *, on: bool) -> Iterator[None]:
    """Dropout in the adapter alone, or nowhere."""
    before = [(module, module.training) for module in model.modules()]
    for name, module in model.named_modules():
        module.training = on and ".lora_dropout" in name
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
