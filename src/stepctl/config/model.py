"""The settings model. Everything said of a setting (docs, stepctl.toml.example, errors) is generated from here.

msgspec decodes strictly: a boolean is never a number, a number never a string, an unknown key is an error.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Method = Literal["sft", "dpo", "kto"]
Precision = Literal["auto", "fp32", "bf16"]
TrainOn = Literal["assistant", "all"]
OnLong = Literal["truncate", "refuse", "drop"]
Thinking = Literal["keep", "drop"]
Commit = Literal["auto", "machine", "client"]
Cloud = Literal["SECURE", "COMMUNITY"]
PodDevice = Literal["cuda", "cpu"]
Positive = Annotated[float, Meta(gt=0)]
PortNumber = Annotated[int, Meta(ge=1, le=65535)]


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
    on_long: Annotated[
        OnLong,
        Meta(
            description='An example longer than max_length: "truncate" (the loss is told), "refuse" (it is bad) or '
            '"drop" (left out and counted).'
        ),
    ] = "truncate"
    thinking: Annotated[
        Thinking, Meta(description='Reasoning beside replies: "keep" trains what the template writes of it; "drop".')
    ] = "keep"
    parse_special_tokens: Annotated[
        bool, Meta(description="Control tokens that texts spell are control tokens, and not plain text.")
    ] = False
    skip_bad_rows: Annotated[
        bool, Meta(description="Bad rows are left out and counted, and do not refuse the trace.")
    ] = False
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


class SshTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="ssh"):
    """A machine that is reached over SSH."""

    host: Annotated[str, Meta(description="Name or address, or an alias of ~/.ssh/config.")]
    port: Annotated[PortNumber | None, Meta(description="Port; that of ~/.ssh/config, or 22.")] = None
    user: Annotated[str | None, Meta(description="Login; that of ~/.ssh/config, or the one you have here.")] = None
    key: Annotated[str | None, Meta(description="Private key file; else the agent and the usual files are tried.")] = (
        None
    )
    known_hosts: Annotated[str | None, Meta(description="File that holds the host's key; else ~/.ssh/known_hosts.")] = (
        None
    )
    workdir: Annotated[str, Meta(description="Folder on the machine for runs, models and environments.")] = "~/.stepctl"
    python: Annotated[
        str, Meta(description="Python on the machine (3.11 or newer); packages that it has are used.")
    ] = "python3"
    venv: Annotated[
        str | None,
        Meta(description="Virtual environment on the machine to use as it is; nothing is installed then."),
    ] = None
    commit: Annotated[
        Commit, Meta(description='Who writes to a bucket on the Hub: the "machine", or the "client" after fetching.')
    ] = "auto"
    env: Annotated[dict[str, str], Meta(description="Variables for the trainer there; no secrets.")] = field(
        default_factory=dict
    )


class RunpodTarget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="runpod"):
    """A pod that is rented for one call, guarded, and deleted."""

    max_hours: Annotated[float, Meta(description="A pod ends itself this long after it was created.", gt=0, le=168)]
    gpu_types: Annotated[
        tuple[str, ...], Meta(description='GPU types in order of preference, or "auto": the cheapest that is enough.')
    ] = ("auto",)
    min_vram_gb: Annotated[
        Positive | None, Meta(description="GPU memory that is needed; else estimated from the call.")
    ] = None
    gpu_count: Annotated[int, Meta(description="GPUs in the pod.", ge=1, le=8)] = 1
    cloud: Annotated[Cloud, Meta(description="SECURE: data centers; COMMUNITY: hardware of others.")] = "SECURE"
    data_center_ids: Annotated[tuple[str, ...], Meta(description="Data centers to choose from; empty: any.")] = ()
    max_price_per_hour: Annotated[
        Positive | None, Meta(description="No pod is kept that costs more, in USD per hour.")
    ] = None
    max_cost_usd: Annotated[Positive | None, Meta(description="A pod ends itself when it has cost this, in USD.")] = (
        None
    )
    image: Annotated[str, Meta(description="Container image.")] = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
    container_disk_gb: Annotated[int, Meta(description="Disk of the container.", ge=5, le=4096)] = 50
    network_volume_id: Annotated[
        str | None, Meta(description="Network volume: holds the cache of models, and ties the pod to its data center.")
    ] = None
    min_cuda_version: Annotated[str | None, Meta(description='Oldest CUDA version of the host, such as "12.8".')] = None
    boot_grace_minutes: Annotated[
        float, Meta(description="A pod whose job has not started so long after create ends itself.", gt=0)
    ] = 30.0
    lease_minutes: Annotated[
        float, Meta(description="Before the job starts a pod ends itself when no client was heard for so long.", gt=0)
    ] = 15.0
    stall_minutes: Annotated[
        float, Meta(description="A job without an event for so long is asked to save, and the pod ends.", gt=0)
    ] = 30.0
    retrieve_grace_minutes: Annotated[
        float, Meta(description="A pod whose job ended keeps what it saved so long for a client to fetch.", gt=0)
    ] = 60.0
    poll_seconds: Annotated[
        float, Meta(description="Seconds between two questions to the provider.", ge=0.05, le=60)
    ] = 10.0
    watchdog_seconds: Annotated[float, Meta(description="Seconds between looks of the pod's watchdog.", ge=1)] = 30.0
    device: Annotated[
        PodDevice, Meta(description='What the job must find: "cuda"; "cpu" for a rehearsal on an emulated pod.')
    ] = "cuda"
    python: Annotated[str, Meta(description="Python on the pod (3.11 or newer); packages that it has are used.")] = (
        "python3"
    )
    venv: Annotated[
        str | None, Meta(description="Virtual environment on the pod to use as it is; nothing is installed then.")
    ] = None
    commit: Annotated[
        Commit,
        Meta(
            description='Who writes to a bucket on the Hub: the "machine" or the "client"; "auto": the machine, '
            "but for COMMUNITY."
        ),
    ] = "auto"
    env: Annotated[dict[str, str], Meta(description="Variables for the trainer there; no secrets.")] = field(
        default_factory=dict
    )
    api_url: Annotated[
        str | None, Meta(description="The provider's API, when it is another one; RUNPOD_API_URL gives it too.")
    ] = None
    api_key_command: Annotated[
        str | None, Meta(description="Command that prints the API key, when RUNPOD_API_KEY is not set.")
    ] = None


Target = LocalTarget | SshTarget | RunpodTarget


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
