"""The frozen base model and its seeded adapter, made anew for every job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from stepctl.base.errors import StepctlError, UsageError
from stepctl.base.tensors import LFS
from stepctl.config.model import LoraSettings
from stepctl.jobs.spec import ModelSpec
from stepctl.trainer.device import Placement

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_ADAPTER_NAME = re.compile(r"(\.lora_[A-Za-z_]+)\.default(?=\.|$)")


@dataclass
class Trainable:
    """What a job trains. ``parameters`` are the adapter's, fp32, by the name they have in an adapter file.

    ``reference`` are the values that ``parameters`` have in the reference model, where that is not the base model
    alone. ``step`` is the absolute step the parameters and the moments are at; ``spoiled`` that they must not be saved.
    """

    model: Any
    parameters: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.AdamW
    placement: Placement
    reference: Mapping[str, torch.Tensor] | None = None
    step: int = 0
    spoiled: bool = False


def local_folder(source: str) -> Path | None:
    """The folder that ``source`` names, or None for a Hub id."""
    path = Path(source)
    return path if path.is_absolute() or source.startswith(".") or path.is_dir() else None


def load_base(model: ModelSpec, placement: Placement, hf_token: str | None) -> Any:
    """Load a causal language model, whole, in the placement's precision: into the CPU's memory, or spread over GPUs.

    Raises:
        StepctlError: it is not there, not whole, not allowed, or not a causal language model.
    """
    folder = local_folder(model.source)
    if folder is not None:
        check_folder(folder)
    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            model.source,
            revision=model.revision or "main",
            token=hf_token,
            trust_remote_code=model.trust_remote_code,
            dtype=placement.dtype,
            output_loading_info=True,
            **placement.loading,
        )
    except Exception as error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        raise explain(model, error) from error
    # transformers fills what it does not find with random numbers and only warns.
    missing = sorted(info["missing_keys"])
    if missing or info["mismatched_keys"]:
        what = f"{len(missing)} weights are missing, the first {missing[0]}" if missing else "weights have other shapes"
        raise StepctlError(
            f"the base model {model.source} is not whole: {what}",
            next="fetch or copy the model again",
            code="model_unusable",
        )
    return loaded


def check_folder(folder: Path) -> None:
    """Refuse what is no model's folder, or one without real weights.

    Raises:
        UsageError: it says what is missing.
    """

    def refuse(what: str) -> StepctlError:
        return UsageError(
            f"the base model {folder} {what}",
            next="give a folder with config.json and weights, or a Hugging Face id",
            code="model_unusable",
        )

    if not folder.is_dir():
        raise refuse("is not a folder")
    if not (folder / "config.json").is_file():
        raise refuse("has no config.json")
    weights = [path for pattern in _WEIGHTS for path in folder.glob(pattern)]
    if not weights:
        raise refuse("has no weights (model.safetensors)")
    for path in weights:
        with path.open("rb") as file:
            head = file.read(len(LFS))
        if not head:
            raise refuse(f"has an empty {path.name}")
        if head == LFS:
            raise refuse(f"has a Git LFS pointer in place of {path.name} (`git lfs pull` was not run)")


def explain(model: ModelSpec, error: Exception) -> StepctlError:
    """Say in a user's words why transformers did not load ``model``."""
    from huggingface_hub import errors as hub

    source, seen = model.source, set[type]()
    cause: BaseException | None = error
    while cause is not None and type(cause) not in seen:
        seen.add(type(cause))
        cause = cause.__cause__ or cause.__context__

    def is_a(*kinds: type) -> bool:
        return any(issubclass(kind, kinds) for kind in seen)

    if is_a(hub.GatedRepoError):
        return UsageError(
            f"the base model {source} is gated: its owner has to let this account in",
            next="accept its terms on its page and set HF_TOKEN to a token of that account",
            code="model_gated",
        )
    if is_a(hub.RevisionNotFoundError):
        return UsageError(f"the base model {source} has no revision {model.revision}", next="check `revision`")
    if is_a(hub.RepositoryNotFoundError):
        return UsageError(
            f"the base model {source} is not on the Hub, or private",
            next="check its name; for a private one set HF_TOKEN; for a folder use --model /path/to/a/folder",
            code="model_not_found",
        )
    if is_a(hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError, TimeoutError):
        return StepctlError(
            f"the base model {source} is not in the local cache, and the Hub cannot be reached",
            next="connect, or use --model /path/to/a/folder",
            code="hub_unreachable",
        )
    if "trust_remote_code" in str(error):
        return UsageError(
            f"the base model {source} needs code that its repository carries",
            next="set trust_remote_code = true if you trust that repository",
            code="remote_code",
        )
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return StepctlError(
        f"the base model {source} cannot be loaded: {first[:300]}",
        next="check that it is a whole causal language model of a kind that this transformers knows",
        code="model_unusable",
    )


def vocabulary(model: Any) -> int:
    """Number of token ids that the model has an embedding for."""
    return int(model.get_input_embeddings().num_embeddings)


def add_adapter(base: Any, lora: LoraSettings, seed: int, source: str, revision: str | None) -> Any:
    """Wrap ``base`` in a fresh LoRA adapter, drawn from ``seed`` alone (on the CPU, wherever ``base`` is).

    Returns:
        A PEFT model of which the adapter's parameters, and no others, are trainable.

    Raises:
        UsageError: a target module is not in the model, or is no linear layer inside of it.
    """
    _check_targets(base, lora.target_modules)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=source,
        revision=revision,
    )
    # Seeded here and nowhere before: a draw in between would make two fresh processes differ.
    torch.manual_seed(seed)
    model = get_peft_model(base, config)
    # PEFT puts the folder it finds in the base's own config there; the name that was asked for is what loads again.
    model.peft_config["default"].base_model_name_or_path = source
    return model


def _check_targets(base: Any, targets: tuple[str, ...]) -> None:
    linear = {n: m for n, m in base.named_modules() if isinstance(m, (torch.nn.Linear, Conv1D))}
    output = base.get_output_embeddings()
    names = sorted({name.rpartition(".")[2] for name, module in linear.items() if module is not output})

    def refuse(what: str) -> UsageError:
        return UsageError(
            f"{what}; the model's linear layers are: {', '.join(names)}",
            next="set lora.target_modules to names among these",
            code="target_modules",
        )

    absent = [t for t in targets if not any(n == t or n.endswith(f".{t}") for n, _ in base.named_modules())]
    if absent or not targets:
        raise refuse(
            f"target module {', '.join(absent)} is not in the model" if absent else "no target module is given"
        )
    for target in targets:
        hit = [m for n, m in base.named_modules() if n == target or n.endswith(f".{target}")]
        if any(not isinstance(m, (torch.nn.Linear, Conv1D)) or m is output for m in hit):
            raise refuse(f"target module {target} cannot carry an adapter here")


def adapter_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The trainable parameters by their name in an adapter file, sorted.

    Raises:
        StepctlError: something outside of the adapter is trainable, or the adapter is not fp32.
    """
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not all(_ADAPTER_NAME.search(n) and p.dtype == torch.float32 for n, p in trainable.items()):
        raise StepctlError("the model came with trainable weights outside of its adapter", code="model_unusable")
    return {_ADAPTER_NAME.sub(r"\1", name): trainable[name] for name in sorted(trainable)}


def make_optimizer(
    parameters: Mapping[str, torch.nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) over the adapter."""
    optimizer = torch.optim.AdamW(
        list(parameters.values()), lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay
    )
    optimizer.register_load_state_dict_post_hook(_steps_to_cpu)
    return optimizer


def _steps_to_cpu(optimizer: torch.optim.Optimizer) -> None:
    """accelerate loads the state anew from one device: torch puts the moments back beside their parameters, and fails
    on a step count that stayed on another GPU than those."""
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"].cpu()
