"""What a run wants of a pod, from the target's recorded options and the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from stepctl.runs.pods import PodRecord
from stepctl.targets.runpod.command import MAX_ENV
from stepctl.targets.runpod.records import CreateGpu, CreatePod, Mounts, NetworkMount

VOLUME_PATH = "/workspace"
_PREFIX = "stepctl-"
_SAVE_AHEAD = 300


@dataclass(frozen=True, kw_only=True)
class Wants:
    """A pod for one run. Fields are the target's settings of the same name, but for these.

    Attributes:
        run: the run's id.
        need_gb: GPU memory that the call is estimated to need; ``min_vram_gb`` overrides it.
        args: the body's ``args`` (the start command), as its JSON text.
        env: the container's environment; the run, and what follows from the price, are put in.
    """

    run: str
    max_hours: float
    image: str
    gpu_types: tuple[str, ...] = ("auto",)
    min_vram_gb: float | None = None
    need_gb: float = 0.0
    gpu_count: int = 1
    cloud: str = "SECURE"
    data_center_ids: tuple[str, ...] = ()
    max_price_per_hour: float | None = None
    max_cost_usd: float | None = None
    container_disk_gb: int = 50
    network_volume_id: str | None = None
    min_cuda_version: str | None = None
    args: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class _Options(msgspec.Struct, frozen=True):
    max_hours: float
    image: str
    gpu_types: tuple[str, ...] = ("auto",)
    min_vram_gb: float | None = None
    gpu_count: int = 1
    cloud: str = "SECURE"
    data_center_ids: tuple[str, ...] = ()
    max_price_per_hour: float | None = None
    max_cost_usd: float | None = None
    container_disk_gb: int = 50
    network_volume_id: str | None = None
    min_cuda_version: str | None = None


def wants_of(
    options: Mapping[str, object], *, run: str, need_gb: float, args: str | None, env: Mapping[str, str]
) -> Wants:
    """The wants of a run from its target's options (those of ``RunpodTarget``; others are passed over).

    Raises:
        msgspec.ValidationError: an option is not what the settings model makes of it.
    """
    known = msgspec.convert(dict(options), _Options)
    return Wants(run=run, need_gb=need_gb, args=args, env=env, **msgspec.structs.asdict(known))


def pod_name(run: str, number: int) -> str:
    """The unique name of a run's pod."""
    return f"{_PREFIX}{run}-{number}"


def run_of(name: str) -> tuple[str, int] | None:
    """The run and the number that a pod's name says; None when it is none of ours."""
    run, _, number = name.removeprefix(_PREFIX).rpartition("-")
    if not name.startswith(_PREFIX) or not run or not number.isdecimal() or not number.isascii():
        return None
    return run, int(number)


def next_name(record: PodRecord) -> str:
    """A name that no attempt of the run had."""
    used = [found[1] for attempt in record.attempts if (found := run_of(attempt.name))]
    return pod_name(record.run, max(used, default=0) + 1)


def limit_of(wants: Wants, price: float | None) -> tuple[int, str]:
    """How long a pod of that price may live, from its creation: the deadline, or the cost cap where that is sooner.

    Returns:
        Seconds, and which of the two it is: ``deadline`` or ``cost``.

    Args:
        wants: with ``max_hours`` and ``max_cost_usd``.
        price: USD per hour for the whole pod; where it is not known, the highest that is allowed counts.
    """
    price = price or wants.max_price_per_hour
    if wants.max_cost_usd is not None and price and wants.max_cost_usd / price < wants.max_hours:
        return int(wants.max_cost_usd / price * 3600), "cost"
    return int(wants.max_hours * 3600), "deadline"


def limit_at(wants: Wants, listed: float | None, real: float | None) -> tuple[int, str]:
    """As :func:`limit_of`, for a pod that was listed at one price and costs another.

    The dearer one counts: the pod was made with the limit of the first, and the second can only tighten it.
    """
    return min(limit_of(wants, listed), limit_of(wants, real or listed))


def save_ahead(seconds: int) -> int:
    """How long before the end of its life a pod asks its job to save: five minutes, and less of a short life."""
    return min(_SAVE_AHEAD, max(1, seconds // 10))


def body_of(wants: Wants, name: str, gpu: str, price: float | None) -> CreatePod:
    """The body of the create of a pod of type ``gpu``, listed at ``price`` USD per hour for the whole pod."""
    seconds, why = limit_of(wants, price)
    env = {
        **wants.env,
        "STEPCTL_RUN": wants.run,
        "STEPCTL_MAX_SECONDS": str(seconds),
        "STEPCTL_MAX_REASON": why,
        "STEPCTL_SAVE_AHEAD": str(save_ahead(seconds)),
    }
    assert len(env) <= MAX_ENV, "the provider takes 50 variables"
    unset = msgspec.UNSET
    volume = wants.network_volume_id
    return CreatePod(
        name=name,
        image=wants.image,
        gpu=CreateGpu(id=gpu, count=wants.gpu_count, min_cuda_version=wants.min_cuda_version or unset),
        cloud="COMMUNITY" if wants.cloud == "COMMUNITY" else "SECURE",
        disk=wants.container_disk_gb,
        env=env,
        args=unset if wants.args is None else wants.args,
        data_center_ids=wants.data_center_ids or unset,
        mounts=Mounts(network=(NetworkMount(volume_id=volume, path=VOLUME_PATH),)) if volume else unset,
    )
