"""A checkpoint's files: adapter, optimizer, trainer state. Safetensors and JSON only, byte for byte repeatable.

The same adapter and moments give the same bytes: names are sorted and no time is written. Nothing here unpickles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load, save

from stepctl.base.errors import DamagedCheckpoint, StepctlError, UsageError
from stepctl.base.tensors import LFS
from stepctl.config.model import LoraSettings, TrainSettings
from stepctl.trainer.model import Trainable
from stepctl.trainer.stepping import RNG_RULE

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
OPTIMIZER, TRAINER_STATE = "optimizer.safetensors", "trainer_state.json"
REFERENCE = "reference.safetensors"
"""The adapter of the reference, where it is not the base model alone."""
STATE_VERSION = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")
_Tensors = dict[str, torch.Tensor]
_Parameters = Mapping[str, torch.nn.Parameter]
_Refusal = Callable[[str], StepctlError]


class SchedulerState(Struct, frozen=True, kw_only=True):
    """``last_epoch`` counts steps, as torch's schedulers call it."""

    name: str
    last_epoch: int


class OptimizerState(Struct, frozen=True, kw_only=True):
    """Hyperparameters the last step was made with."""

    name: str
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    max_grad_norm: float


class TrainerState(Struct, frozen=True, kw_only=True):
    """``trainer_state.json``. ``rng`` names the rule by which randomness follows from seed, step and micro-batch."""

    version: int
    step: int
    seed: int
    rng: str
    scheduler: SchedulerState
    optimizer: OptimizerState


def write(folder: Path, trainable: Trainable, settings: TrainSettings) -> None:
    """Write a checkpoint's files into ``folder``, which exists.

    Raises:
        StepctlError: a weight is not finite; nothing is written.
    """
    if trainable.spoiled:
        raise StepctlError("the adapter holds a weight that is not finite and is not saved", code="non_finite")
    adapter = {name: _plain(p) for name, p in trainable.parameters.items()}
    (folder / ADAPTER).write_bytes(save(adapter, metadata={"format": "pt"}))
    (folder / ADAPTER_CONFIG).write_bytes(_json(_config(trainable.model)))
    (folder / OPTIMIZER).write_bytes(save(_moments(trainable), metadata={"format": "pt"}))
    if trainable.reference is not None:
        reference = {name: _plain(tensor) for name, tensor in trainable.reference.items()}
        (folder / REFERENCE).write_bytes(save(reference, metadata={"format": "pt"}))
    group = trainable.optimizer.param_groups[0]
    state = TrainerState(
        version=STATE_VERSION,
        step=trainable.step,
        seed=settings.seed,
        rng=RNG_RULE,
        scheduler=SchedulerState(name="constant", last_epoch=trainable.step),
        optimizer=OptimizerState(
            name="AdamW",
            learning_rate=float(group["lr"]),
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=float(group["weight_decay"]),
            max_grad_norm=settings.max_grad_norm,
        ),
    )
    (folder / TRAINER_STATE).write_bytes(_json(msgspec.to_builtins(state)))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu").contiguous()


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _config(model: Any) -> dict[str, object]:
    """``adapter_config.json`` as PEFT writes it, with its sets in order."""
    config = {**model.peft_config["default"].to_dict(), "inference_mode": True}
    plain = {k: sorted(v) if isinstance(v, set) else v.value if isinstance(v, Enum) else v for k, v in config.items()}
    plain["target_modules"] = sorted(config["target_modules"])
    return plain


def _moments(trainable: Trainable) -> _Tensors:
    """AdamW's state by parameter name; zeros at a step where it has none yet."""
    tensors: _Tensors = {}
    for name, parameter in trainable.parameters.items():
        state = trainable.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            tensors[f"{name}.{moment}"] = _plain(state.get(moment, torch.zeros_like(parameter)))
        tensors[f"{name}.step"] = _plain(state.get("step", torch.tensor(0.0)))
    return tensors


def restore(folder: Path, trainable: Trainable, lora: LoraSettings, step: int, *, reference: bool = False) -> None:
    """Put a checkpoint in place: all of it or nothing. Learning rate and weight decay stay those of the optimizer.

    ``reference`` says that the reference is an adapter, which the checkpoint must hold.

    Raises:
        DamagedCheckpoint: a file is missing, cut or of another model, rank, target or step; it is named.
    """

    def refuse(what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"checkpoint {folder.name}: {what}",
            safe="nothing was trained",
            next="run `stepctl lineage verify`, or go back to an earlier checkpoint",
        )

    _check_config(_config_of(folder, refuse), lora, refuse, dropout=True)
    adapter = _read(folder / ADAPTER, refuse)
    shapes = {n: p.shape for n, p in trainable.parameters.items()}
    _check_tensors(ADAPTER, adapter, shapes, refuse)
    held = _read(folder / REFERENCE, refuse) if reference else None
    if held is not None:
        _check_tensors(REFERENCE, held, shapes, refuse)
    moments = _read(folder / OPTIMIZER, refuse)
    _check_tensors(OPTIMIZER, moments, {n: t.shape for n, t in _moments(trainable).items()}, refuse)
    _check_state(folder, step, refuse)
    if any(float(t) != step for n, t in moments.items() if n.endswith(".step")):
        raise refuse(f"{OPTIMIZER} is of another step than {step}")
    _place(trainable.parameters, adapter)
    if held is not None:
        trainable.reference = {n: held[n].to(p.device) for n, p in trainable.parameters.items()}
    for name, parameter in trainable.parameters.items():
        trainable.optimizer.state[parameter] = {
            "step": moments[f"{name}.step"],
            **{m: moments[f"{name}.{m}"].to(parameter.device) for m in _MOMENTS},
        }
    trainable.step = step


def lora_of(folder: Path) -> LoraSettings:
    """The shape that the adapter of a PEFT folder says it has.

    Raises:
        UsageError: ``adapter_config.json`` is not there, or not of a LoRA adapter with named target modules.
    """
    refuse = _unusable(folder)
    config = _config_of(folder, refuse)
    names = {"r": "r", "alpha": "lora_alpha", "target_modules": "target_modules"}
    try:
        return msgspec.convert({ours: config.get(theirs) for ours, theirs in names.items()}, LoraSettings)
    except msgspec.ValidationError as error:
        raise refuse(f"{ADAPTER_CONFIG} is not of a LoRA adapter: {error}") from error


def _unusable(folder: Path) -> _Refusal:
    def refuse(what: str) -> UsageError:
        return UsageError(
            f"the adapter in {folder}: {what}",
            safe="nothing was trained",
            next="give a PEFT folder of the same base model, rank, alpha and target modules",
            code="init_from",
        )

    return refuse


def init_from(folder: Path, parameters: _Parameters, lora: LoraSettings) -> None:
    """Put the adapter of a PEFT folder into a model's adapter ``parameters``.

    Raises:
        UsageError: it is no safetensors adapter of this shape; the file and the difference are named.
    """

    refuse = _unusable(folder)
    if not (folder / ADAPTER).exists() and (folder / "adapter_model.bin").exists():
        raise refuse("adapter_model.bin is a pickle, which can run code and is never loaded; save it as safetensors")
    _check_config(_config_of(folder, refuse), lora, refuse, dropout=False)
    adapter = _read(folder / ADAPTER, refuse)
    adapter = {name: tensor.float() for name, tensor in adapter.items()}
    _check_tensors(ADAPTER, adapter, {n: p.shape for n, p in parameters.items()}, refuse)
    _place(parameters, adapter)


def _place(parameters: _Parameters, adapter: _Tensors) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(adapter[name])


def _bytes(path: Path, refuse: _Refusal) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise refuse(f"{path.name} is missing") from error
    if not data:
        raise refuse(f"{path.name} is empty")
    if data.startswith(LFS):
        raise refuse(f"{path.name} is a Git LFS pointer, not the file it points to (`git lfs pull` was not run)")
    return data


def _read(path: Path, refuse: _Refusal) -> _Tensors:
    data = _bytes(path, refuse)
    try:
        return dict(load(data))
    except (SafetensorError, ValueError, KeyError) as error:
        raise refuse(f"{path.name} is cut or no safetensors file ({len(data)} bytes)") from error


def _check_tensors(file: str, found: _Tensors, needed: Mapping[str, torch.Size], refuse: _Refusal) -> None:
    if found.keys() != needed.keys():
        raise refuse(f"{file} {_other_names(found.keys(), needed.keys())}")
    for name, tensor in found.items():
        if tensor.shape != needed[name]:
            raise refuse(f"{file}: {name} has shape {list(tensor.shape)}, the model needs {list(needed[name])}")
        if tensor.dtype != torch.float32:
            raise refuse(f"{file}: {name} is {tensor.dtype}, not float32")
        if not bool(torch.isfinite(tensor).all()):
            raise refuse(f"{file}: {name} holds a value that is not finite")


def _other_names(found: Set[str], needed: Set[str]) -> str:
    """How the tensors of a file differ from those of the adapter; an optimizer's several of one count once."""
    saved, trained = ({name.removesuffix(s) for name in names for s in _suffix(name)} for names in (found, needed))
    parts = [f"holds {len(saved)} tensors, and the adapter has {len(trained)} trainable ones"]
    for what, names in (("missing in the file", needed - found), ("not in the adapter", found - needed)):
        modules = sorted({name.partition(".lora_")[0].removeprefix("base_model.model.") for name in names})
        if modules:
            more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
            parts.append(f"{what}: {', '.join(modules[:3])}{more}")
    return "; ".join(parts)


def _suffix(name: str) -> tuple[str, ...]:
    return tuple(f".{part}" for part in (*_MOMENTS, "step") if name.endswith(f".{part}")) or ("",)


def _config_of(folder: Path, refuse: _Refusal) -> dict[str, Any]:
    try:
        return msgspec.json.decode(_bytes(folder / ADAPTER_CONFIG, refuse), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise refuse(f"{ADAPTER_CONFIG} is not JSON") from error


def _check_config(config: dict[str, Any], lora: LoraSettings, refuse: _Refusal, *, dropout: bool) -> None:
    wanted: dict[str, object] = {"peft_type": "LORA", "r": lora.r, "lora_alpha": lora.alpha}
    if dropout:
        wanted["lora_dropout"] = lora.dropout
    for name, value in wanted.items():
        if config.get(name) != value:
            raise refuse(f"{ADAPTER_CONFIG} says {name} = {config.get(name)!r}, and {value!r} is asked for")
    targets = config.get("target_modules")
    if isinstance(targets, list) and set(targets) != set(lora.target_modules):
        raise refuse(
            f"{ADAPTER_CONFIG} says target_modules = {sorted(map(str, targets))}, "
            f"and {sorted(lora.target_modules)} is asked for"
        )
    # Each of these changes what the same tensors mean.
    for name in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication"):
        if config.get(name):
            raise refuse(f"{ADAPTER_CONFIG} says {name}, which is not supported")


def _check_state(folder: Path, step: int, refuse: _Refusal) -> None:
    try:
        state = msgspec.json.decode(_bytes(folder / TRAINER_STATE, refuse), type=TrainerState)
    except msgspec.MsgspecError as error:
        raise refuse(f"{TRAINER_STATE} cannot be read: {error}") from error
    if state.step != step or state.scheduler.last_epoch != step:
        raise refuse(f"{TRAINER_STATE} is of step {state.step}, the manifest of step {step}")
    if state.optimizer.name != "AdamW":
        raise refuse(f"{TRAINER_STATE} is of the optimizer {state.optimizer.name!r}, and AdamW trains here")
    if state.version != STATE_VERSION or state.rng != RNG_RULE or state.scheduler.name != "constant":
        raise refuse(f"{TRAINER_STATE} was written by another release of stepctl")
