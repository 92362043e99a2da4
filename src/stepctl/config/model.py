"""The settings model. Everything said of a setting (docs, stepctl.toml.example, errors) is generated from here.

msgspec decodes strictly: a boolean is never a number, a number never a string, an unknown key is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Method = Literal["sft", "dpo", "kto"]
Precision = Literal["auto", "fp32", "bf16"]
TrainOn = Literal["assistant", "all"]


class LoraSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The adapter's shape: part of the identity of a lineage."""

    r: Annotated[int, Meta(description="Rank of the adapter.", ge=1, le=1024)] = 8
    alpha: Annotated[int, Meta(description="Scale of the adapter: its output counts alpha / r times.", ge=1)] = 16
    dropout: Annotated[float, Meta(description="Dropout before the adapter.", ge=0, lt=1)] = 0.0
    target_modules: Annotated[tuple[str, ...], Meta(description="Names of the linear layers that get an adapter.")] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    )


class TrainSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How training goes: may change from call to call; each change takes effect and is recorded."""

    learning_rate: Annotated[float, Meta(description="Learning rate of AdamW, constant.", gt=0)] = 1e-4
    weight_decay: Annotated[float, Meta(description="Decoupled weight decay of AdamW.", ge=0)] = 0.0
    max_grad_norm: Annotated[float, Meta(description="The gradient is scaled down to this norm.", gt=0)] = 1.0
    max_length: Annotated[int, Meta(description="Tokens of an example that are kept; the rest is cut.", ge=2)] = 1024
    grad_accum: Annotated[int, Meta(description="Examples in one optimizer step (G).", ge=1)] = 4
    seed: Annotated[int, Meta(description="Seed of the adapter's start and of dropout.", ge=0, le=2**63 - 1)] = 0
    train_on: Annotated[
        TrainOn, Meta(description='What is supervised: "assistant" (answers only) or, for sft, "all" (every token).')
    ] = "assistant"
    beta: Annotated[float, Meta(description="DPO and KTO: how strongly the policy is held to the reference.", gt=0)] = (
        0.1
    )
    desirable_weight: Annotated[float, Meta(description="KTO: what a desirable row counts.", gt=0)] = 1.0
    undesirable_weight: Annotated[float, Meta(description="KTO: what an undesirable row counts.", gt=0)] = 1.0
    precision: Annotated[
        Precision,
        Meta(description='"auto" takes bf16 on a GPU that has it and fp32 elsewhere; the choice is reported.'),
    ] = "auto"
    device: Annotated[
        str, Meta(description='"auto", "cpu", "cuda" or "cuda:N"; a device that is not there is an error.')
    ] = "auto"
    gpu_ids: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=9999)], ...],
        Meta(
            description="GPUs that may be used, counted among those that CUDA_VISIBLE_DEVICES leaves visible; empty "
            "means all of them. A model that one does not hold is spread over them."
        ),
    ] = ()
    save_every_minutes: Annotated[float, Meta(description="A long call commits a checkpoint this often.", gt=0)] = 15.0


class LocalTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="local"):
    """This machine."""

    python: Annotated[
        str | None, Meta(description="The Python that trains, when it is not the one stepctl runs on.")
    ] = None


Target = LocalTarget


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a call, resolved."""

    model: Annotated[
        str, Meta(description="Base model: a Hugging Face id, or a folder (./, ../, / or ~ in front).")
    ] = "HuggingFaceTB/SmolLM2-135M"
    revision: Annotated[str | None, Meta(description="Branch, tag or commit of the base model on the Hub.")] = None
    method: Annotated[Method, Meta(description="Training method: what rows are, and the loss.")] = "sft"
    bucket: Annotated[
        str, Meta(description="Where lineages live: a directory, or hf://buckets/NAMESPACE/NAME[/PREFIX].")
    ] = "./checkpoints"
    lineage: Annotated[str, Meta(description="Name of the chain of checkpoints that calls extend.")] = "main"
    init_from: Annotated[
        str | None,
        Meta(
            description="Adapter that a new lineage starts from: LINEAGE, LINEAGE@STEP or a PEFT folder (with a slash)."
        ),
    ] = None
    target: Annotated[str, Meta(description="Named place to train on: local, or one of [targets].")] = "local"
    keep_checkpoints: Annotated[int, Meta(description="Newest checkpoints kept; the head always is.", ge=1)] = 3
    runs: Annotated[str, Meta(description="Directory of the run records.")] = "./runs"
    trust_remote_code: Annotated[bool, Meta(description="Run code that a model repository carries.")] = False
    lora: LoraSettings = field(default_factory=LoraSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    targets: dict[str, Target] = field(default_factory=dict)
