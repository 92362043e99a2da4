"""What is in a PEFT folder, judged without torch, so that a job is only started on an adapter that it can take."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepctl.base.errors import UsageError
from stepctl.base.tensors import LFS, BrokenTensors, Tensor, read_header

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
ADAPTER_FILES = (WEIGHTS, CONFIG)
_PICKLE = "adapter_model.bin"
_LARGEST = {WEIGHTS: 64 << 30, CONFIG: 1 << 20}
"""Bytes. The largest adapter that the settings allow, rank 1024 on all layers of a 70B model, is near the first."""

_OTHER_MEANING = (
    *("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication"),
    *("layers_to_transform", "exclude_modules", "lora_bias", "use_qalora", "use_bdlora", "trainable_token_indices"),
    *("target_parameters", "alora_invocation_tokens", "megatron_config", "arrow_config", "kasa_config"),
    *("velora_config", "monteclora_config"),
)
"""With any of these, the same tensors mean something else, or others are needed."""

_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to draw a new adapter that leave the base model as it is."""

_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_INTO_HIDDEN = re.compile(r"\.layers\.(?P<layer>\d+)\.self_attn\.[qkv]_proj")
Refuse = Callable[[str], UsageError]


@dataclass(frozen=True)
class PeftAdapter:
    """A LoRA adapter: its shape (r, alpha, dropout, target_modules), and the base model and commit that it names."""

    lora: dict[str, Any]
    base: str | None
    revision: str | None
    tensors: Mapping[str, Tensor]


def unusable(folder: Path) -> Refuse:
    """The error for an adapter that cannot be started from, for the caller to raise."""

    def refuse(what: str) -> UsageError:
        return UsageError(
            f"the adapter in {folder}: {what}",
            safe="nothing was trained",
            next="give a folder with a plain LoRA adapter of this base model, saved by PEFT as safetensors",
            code="init_from",
        )

    return refuse


def read_adapter(folder: Path) -> PeftAdapter:
    """Judge a PEFT folder by its configuration and the header of its weights; sizes come before content.

    Raises:
        UsageError: it is no whole, plain LoRA adapter; the file and what is wrong with it are named.
    """
    refuse = unusable(folder)
    if not (folder / WEIGHTS).exists() and (folder / _PICKLE).exists():
        raise refuse(f"{_PICKLE} is a pickle, which can run code and is never loaded; save it as safetensors")
    for name in (CONFIG, WEIGHTS):
        _check_file(folder / name, refuse)
    config = _read_config(folder / CONFIG, refuse)
    lora = _lora(config, refuse)
    try:
        tensors = read_header(folder / WEIGHTS)
    except BrokenTensors as error:
        raise refuse(f"{WEIGHTS} {error}") from None
    _check_tensors(tensors, lora, refuse)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    return PeftAdapter(
        lora=lora,
        base=base if isinstance(base, str) and base else None,
        revision=revision if isinstance(revision, str) else None,
        tensors=tensors,
    )


def shape_problem(adapter: PeftAdapter, model: Mapping[str, Any]) -> str | None:
    """What shows, from the model's config.json, that the adapter is of another model; the trainer compares all.

    Only names as Llama and its kin have them are judged: their query, key and value layers read the hidden state.
    """
    text = model.get("text_config") or model
    hidden, layers = text.get("hidden_size"), text.get("num_hidden_layers")
    for name, tensor in sorted(adapter.tensors.items()):
        found = _INTO_HIDDEN.search(name)
        if found is None or ".lora_A." not in name:
            continue
        if isinstance(layers, int) and int(found["layer"]) >= layers:
            return f"{WEIGHTS} has {name}, and the base model has {layers} layers"
        if isinstance(hidden, int) and tensor.shape[1] != hidden:
            return f"{WEIGHTS}: {name} reads {tensor.shape[1]} values, and the base model's hidden size is {hidden}"
    return None


def _check_file(path: Path, refuse: Refuse) -> None:
    try:
        about = path.lstat()
    except FileNotFoundError:
        raise refuse(f"it has no {path.name}") from None
    if stat.S_ISLNK(about.st_mode):
        raise refuse(f"{path.name} is a link, and links are not followed; copy it with its content: cp -rL")
    if not stat.S_ISREG(about.st_mode):
        raise refuse(f"{path.name} is not a file")
    if about.st_size == 0:
        raise refuse(f"{path.name} is empty")
    if about.st_size > _LARGEST[path.name]:
        raise refuse(f"{path.name} has {about.st_size} bytes, more than the {_LARGEST[path.name]} allowed")


def _read_config(path: Path, refuse: Refuse) -> dict[str, Any]:
    data = path.read_bytes()
    if data.startswith(LFS):
        raise refuse(f"{path.name} is a Git LFS pointer, not the file it points to (`git lfs pull` was not run)")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):
        raise refuse(f"{path.name} is not JSON") from None
    if not isinstance(config, dict):
        raise refuse(f"{path.name} is not a JSON object")
    return config


def _lora(config: dict[str, Any], refuse: Refuse) -> dict[str, Any]:
    if config.get("peft_type") != "LORA":
        raise refuse(f"{CONFIG} says peft_type = {config.get('peft_type')!r}, and only a LORA adapter can be trained")
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise refuse(f"{CONFIG} says task_type = {config['task_type']!r}, and CAUSAL_LM is trained here")
    for name in _OTHER_MEANING:
        if config.get(name):
            raise refuse(f"{CONFIG} says {name}, which is not supported")
    if config.get("bias") not in (None, "none"):
        raise refuse(f"{CONFIG} says bias = {config['bias']!r}, which is not supported")
    if (start := config.get("init_lora_weights")) not in _PLAIN_STARTS:
        raise refuse(f"{CONFIG} says init_lora_weights = {start!r}, which changes the base model; convert it first")
    targets = config.get("target_modules")
    if isinstance(targets, str):
        raise refuse(f"{CONFIG} says target_modules = {targets!r}, a pattern; a list of the layers' names is needed")
    if not isinstance(targets, list) or not targets or not all(isinstance(name, str) and name for name in targets):
        raise refuse(f"{CONFIG} has no list of target_modules")
    r, alpha = _whole(config.get("r")), _whole(config.get("lora_alpha"))
    if not r or not alpha:
        raise refuse(f"{CONFIG} says r = {config.get('r')!r}, lora_alpha = {config.get('lora_alpha')!r}: no LoRA shape")
    dropout = config.get("lora_dropout") or 0.0
    if type(dropout) not in (int, float) or not 0 <= dropout < 1:
        raise refuse(f"{CONFIG} says lora_dropout = {dropout!r}, and 0 up to 1 is possible")
    return {"r": r, "alpha": alpha, "dropout": float(dropout), "target_modules": tuple(sorted(set(targets)))}


def _whole(value: Any) -> int | None:
    """A positive whole number; some tools write 16.0."""
    good = type(value) in (int, float) and value > 0 and value == value // 1
    return int(value) if good else None


def _check_tensors(tensors: Mapping[str, Tensor], lora: dict[str, Any], refuse: Refuse) -> None:
    sides: dict[str, set[str]] = {}
    for name, tensor in tensors.items():
        found = _TENSOR.fullmatch(name)
        if found is None or len(tensor.shape) != 2:
            raise refuse(f"{WEIGHTS} has {name}, which is no LoRA weight of a linear layer")
        module = found["module"]
        if not any(module == target or module.endswith(f".{target}") for target in lora["target_modules"]):
            raise refuse(f"{WEIGHTS} has {name}, which {CONFIG} does not name in target_modules")
        rank = tensor.shape[0 if found["side"] == "A" else 1]
        if rank != lora["r"]:
            raise refuse(f"{WEIGHTS}: {name} has rank {rank}, and {CONFIG} says r = {lora['r']}")
        if tensor.dtype not in ("F32", "F16", "BF16"):
            raise refuse(f"{WEIGHTS}: {name} is of type {tensor.dtype}, and F32, F16 and BF16 can be read")
        sides.setdefault(module, set()).add(found["side"])
    half = next((module for module, found in sides.items() if len(found) != 2), None)
    if half is not None:
        raise refuse(f"{WEIGHTS} has only one of the two weights of {half}")
    if not sides:
        raise refuse(f"{WEIGHTS} holds no tensors")
