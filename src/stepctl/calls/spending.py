"""The plan before any spending: what is rented, for how much, what it can cost at most and why, what nothing guards."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.calls.away import is_staged
from stepctl.calls.prepare import Prepared
from stepctl.calls.start import steps_of
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget
from stepctl.jobs.events import Progress
from stepctl.models.memory import activations, parameters
from stepctl.models.resolve import is_folder
from stepctl.runs.pods import PodFile
from stepctl.runs.record import RunRecord
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.apikey import api_key, api_url
from stepctl.targets.runpod.choose import Choice, choose, nothing_left
from stepctl.targets.runpod.wants import wants_of

GIB = 1 << 30
_USABLE = 0.9
_ADAPTER_AND_CUDA_GB = 1.0
_RECENT = 50
_IMAGE_GB = 20.0
"""What the container disk holds beside the model, at least: packages, caches, checkpoints."""


def need_gb(prepared: Prepared) -> float:
    """GPU memory in GB that the call needs, for choosing a type.

    (weights in bf16 + activations of the longest example that the settings let through) / 0.9 + 1 GB for the adapter,
    its optimizer and CUDA; the activations as ``models.memory.activations``, of both completions for DPO.
    """
    texts = 2 if prepared.settings.method == "dpo" else 1
    tokens = texts * prepared.settings.train.max_length
    weights = 2 * parameters(prepared.model.config)
    work = activations(prepared.model.config, tokens, 2, scores=False)
    return round((weights + work) / _USABLE / 1e9 + _ADAPTER_AND_CUDA_GB, 1)


@dataclass(frozen=True)
class Times:
    """What earlier runs took, in seconds; None where there were none. ``step_sec`` is of the same model and method."""

    boot_sec: float | None = None
    setup_sec: float | None = None
    step_sec: float | None = None


@dataclass(frozen=True)
class Plan:
    """What would be rented."""

    target: str
    options: RunpodTarget
    choice: Choice
    need_gb: float
    steps: int
    times: Times
    most_usd: float | None
    most_why: str
    staged: bool
    notes: list[str] = field(default_factory=list)

    @property
    def price(self) -> float | None:
        """Of the first candidate, USD per hour."""
        return self.choice.candidates[0].price

    @property
    def forecast_sec(self) -> float | None:
        """How long the pod is likely to live; None when no earlier run tells."""
        times = self.times
        if times.boot_sec is None or times.step_sec is None:
            return None
        return times.boot_sec + (times.setup_sec or 0.0) + self.steps * times.step_sec

    @property
    def forecast_usd(self) -> float | None:
        """What it is likely to cost."""
        seconds = self.forecast_sec
        return None if seconds is None or self.price is None else round(seconds / 3600 * self.price, 4)

    def document(self) -> dict[str, Any]:
        """For ``--json`` and the record."""
        return {
            "gpu_types": [
                {"gpu": c.gpu.id, "price": c.price, "memory_gb": c.gpu.memory} for c in self.choice.candidates
            ],
            "passed_over": [{"gpu": p.gpu, "why": p.why} for p in self.choice.passed],
            "need_gb": self.need_gb,
            "price_per_hour": self.price,
            "forecast_sec": self.forecast_sec,
            "forecast_usd": self.forecast_usd,
            "times": vars(self.times),
            "most_usd": self.most_usd,
            "most_why": self.most_why,
            "notes": self.notes,
        }


def open_api(options: RunpodTarget) -> Api:
    """The provider, with the key of the environment.

    Raises:
        UsageError: there is no key.
    """
    url, key = api_url(options.api_url, os.environ), api_key(options.api_key_command, os.environ)
    return Api(url, key, first_pause=min(1.0, options.poll_seconds))


def check_key(options: RunpodTarget) -> None:
    """Refuse a call that could rent nothing before it leaves a record.

    Raises:
        UsageError: there is no API key, or the API's address is none.
    """
    open_api(options).close()


def plan_pod(world: World, prepared: Prepared, rows: int) -> Plan:
    """Read the catalog, and say what the call would rent.

    Args:
        rows: how many are to be trained.

    Raises:
        StepctlError: the provider cannot be asked, or no type does.
    """
    settings = prepared.settings
    options = settings.targets[settings.target]
    assert isinstance(options, RunpodTarget)
    need = options.min_vram_gb or need_gb(prepared)
    data: dict[str, Any] = msgspec.to_builtins(options)
    wants = wants_of(data, run="plan", need_gb=need, args=None, env={})
    api = open_api(options)
    try:
        choice = choose(api.gpus(options.gpu_count, options.cloud), wants)
    finally:
        api.close()
    if not choice.candidates:
        raise nothing_left(choice, wants)
    dearest = max((c.price for c in choice.candidates if c.price is not None), default=options.max_price_per_hour)
    most, why = _most(options, dearest)
    staged = is_staged(settings)
    return Plan(
        target=settings.target,
        options=options,
        choice=choice,
        need_gb=need,
        steps=steps_of(rows, settings.train.grad_accum),
        times=earlier(world, settings.target, settings.model, settings.method),
        most_usd=most,
        most_why=why,
        staged=staged,
        notes=list(_notes(prepared, options, staged)),
    )


def _most(options: RunpodTarget, price: float | None) -> tuple[float | None, str]:
    hours = f"max_hours {options.max_hours:g}"
    if price is None:
        return options.max_cost_usd, "max_cost_usd" if options.max_cost_usd else f"{hours}, at a price nobody lists"
    life = options.max_hours * price
    if options.max_cost_usd is not None and options.max_cost_usd < life:
        return options.max_cost_usd, "max_cost_usd"
    return round(life, 2), f"{hours} x ${price:.2f} an hour, the dearest type that would be taken"


def _notes(prepared: Prepared, options: RunpodTarget, staged: bool) -> Iterator[str]:
    yield (
        "not guarded: when this client is gone for good while the image is still being pulled, only stepctl pod reap, "
        "from anywhere, ends the pod"
    )
    if options.network_volume_id:
        yield f"not counted: network volume {options.network_volume_id} costs by the month, with or without a pod"
    if staged:
        yield (
            f"the client fetches what is trained: when it stays away for {options.retrieve_grace_minutes:g} minutes "
            "after the job, what is not fetched is lost"
        )
    if options.cloud == "COMMUNITY" and prepared.model.commit is not None:
        yield "no token goes to COMMUNITY hardware: a gated model cannot be fetched there"
    weights = 2 * parameters(prepared.model.config) / 1e9
    if is_folder(prepared.settings.model):
        weights = sum(p.stat().st_size for p in Path(prepared.settings.model).glob("*") if p.is_file()) / 1e9
    if options.network_volume_id is None and weights + _IMAGE_GB > options.container_disk_gb:
        yield (
            f"warning: the model has about {weights:.0f} GB, and container_disk_gb {options.container_disk_gb} leaves "
            f"too little beside packages and checkpoints (about {_IMAGE_GB:.0f} GB)"
        )


def earlier(world: World, target: str, model: str, method: str) -> Times:
    """What the newest runs on this target took, as medians."""
    boots: list[float] = []
    setups: list[float] = []
    steps: list[float] = []
    for name in world.store.names()[-_RECENT:]:
        try:
            record = world.store.load(name)
        except StepctlError:
            continue
        if record.target != target:
            continue
        _boots(PodFile(world.store.folder(name)), boots, setups)
        if (record.model, record.method) == (model, method):
            steps += _steps(world, record)
    return Times(*(round(statistics.median(each), 2) if each else None for each in (boots, setups, steps)))


def _boots(file: PodFile, boots: list[float], setups: list[float]) -> None:
    try:
        attempts = file.load().attempts if file.exists() else []
    except StepctlError:
        return
    for each in attempts:
        if each.ready_at is not None:
            boots.append(_between(each.asked_at, each.ready_at))
            if each.working_at is not None:
                setups.append(_between(each.ready_at, each.working_at))


def _steps(world: World, record: RunRecord) -> list[float]:
    from stepctl.calls.reporting import read_events

    done = [event for event in read_events(world.store.job_dir(record.run)) if isinstance(event, Progress)]
    return [done[-1].elapsed_sec / done[-1].steps_done] if done and done[-1].steps_done else []


def _between(one: str, other: str) -> float:
    return (datetime.fromisoformat(other) - datetime.fromisoformat(one)).total_seconds()


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan for people."""
    first, *others = plan.choice.candidates
    price = "at no listed price" if first.price is None else f"at ${first.price:.2f} an hour"
    count = f"{plan.options.gpu_count} x " if plan.options.gpu_count > 1 else ""
    memory = f"{first.gpu.memory:g} GB, {plan.need_gb:g} GB are needed"
    yield f"rent: {count}{first.gpu.id} ({memory}) {price}, {plan.options.cloud}"
    if others:
        yield f"or, when there is none: {', '.join(c.gpu.id for c in others[:4])}{' ...' if len(others) > 4 else ''}"
    if plan.forecast_usd is not None and plan.forecast_sec is not None:
        times = plan.times
        parts = f"boot {times.boot_sec:.0f} s, set-up {times.setup_sec or 0:.0f} s, "
        parts += f"{plan.steps} steps of {times.step_sec:.1f} s"
        minutes = plan.forecast_sec / 60
        cost = f"${plan.forecast_usd:.{2 if plan.forecast_usd >= 0.1 else 4}f}"
        yield f"forecast: {cost} for {minutes:.0f} minutes ({parts}), from earlier runs"
    else:
        yield f"forecast: none yet, for no earlier run on {plan.target} tells how long boot and steps take"
    most = "unknown" if plan.most_usd is None else f"${plan.most_usd:.2f}"
    yield f"at most: {most} ({plan.most_why})"
    yield from plan.notes
