"""Which GPU types are tried, in which order, and why the others are not."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from stepctl.base.errors import UsageError
from stepctl.targets.runpod.errors import NoCapacity, PriceAbove, RunpodError
from stepctl.targets.runpod.records import GpuType, usd
from stepctl.targets.runpod.wants import Wants

AUTO = "auto"
_STOCK = ("HIGH", "MEDIUM", "LOW")


@dataclass(frozen=True)
class Candidate:
    """A type to try. ``price`` is listed, in USD per hour for the whole pod; None where the catalog has none."""

    gpu: GpuType
    price: float | None

    @property
    def in_stock(self) -> bool:
        """Whether the catalog says so: it can be wrong either way."""
        return self.gpu.availability != "NONE"


@dataclass(frozen=True)
class Passed:
    """A type that is not tried, and why; ``price`` when only its price speaks against it."""

    gpu: str
    why: str
    price: float | None = None


@dataclass(frozen=True)
class Choice:
    """What is tried, in that order, and what is not."""

    candidates: list[Candidate]
    passed: list[Passed]


def choose(gpus: Sequence[GpuType], wants: Wants) -> Choice:
    """Sort the catalog.

    Types that are named come in their order; ``auto`` stands for every type with enough memory, the cheapest first,
    and the better stocked of two that cost the same. What is said to be out of stock comes last, and is still tried.

    Raises:
        UsageError: a named type is not in the catalog.
    """
    known = {gpu.id: gpu for gpu in gpus}
    named = [_find(known, word) for word in dict.fromkeys(wants.gpu_types) if word != AUTO]
    rest = sorted((gpu for gpu in gpus if gpu not in named), key=lambda gpu: _order(gpu, wants))
    candidates: list[Candidate] = []
    passed: list[Passed] = []
    for gpu in [*named, *rest]:
        candidate = Candidate(gpu, pod_price(gpu, wants))
        refused = _against(candidate, wants, gpu not in named)
        if refused is None:
            candidates.append(candidate)
        else:
            passed.append(refused)
    candidates.sort(key=lambda candidate: not candidate.in_stock)
    return Choice(candidates, passed)


def pod_price(gpu: GpuType, wants: Wants) -> float | None:
    """The listed price of a whole pod: the catalog's is for a single GPU."""
    if gpu.price is None:
        return None
    each = usd(gpu.price.community if wants.cloud == "COMMUNITY" else gpu.price.secure)
    return None if each is None else round(each * wants.gpu_count, 6)


def _order(gpu: GpuType, wants: Wants) -> tuple[float, int, str]:
    price = pod_price(gpu, wants)
    stock = _STOCK.index(gpu.availability) if gpu.availability in _STOCK else len(_STOCK)
    return (float("inf") if price is None else price, stock, gpu.id)


def _find(known: dict[str, GpuType], word: str) -> GpuType:
    if word in known:
        return known[word]
    names = {gpu.name.lower(): gpu.id for gpu in known.values()} | {name.lower(): name for name in known}
    near = [names[found] for found in difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.5)]
    raise UsageError(
        f"gpu_types: there is no GPU type {word!r}",
        next=f"did you mean {' or '.join(repr(name) for name in dict.fromkeys(near))}?"
        if near
        else 'use ids of the list of GPU types, or "auto"',
        code="no_such_gpu",
        details={"known": sorted(known)},
    )


def _against(candidate: Candidate, wants: Wants, auto: bool) -> Passed | None:
    """What speaks against a type; None when nothing does."""
    gpu = candidate.gpu
    if auto and AUTO not in wants.gpu_types:
        return Passed(gpu.id, "it is not among gpu_types")
    why = _cannot(gpu, wants, auto)
    if why:
        return Passed(gpu.id, why)
    cap, price = wants.max_price_per_hour, candidate.price
    if cap is not None and price is None:
        return Passed(gpu.id, "it has no listed price, and max_price_per_hour is set")
    if cap is not None and price is not None and price > cap:
        return Passed(gpu.id, f"${price:.2f} per hour is above max_price_per_hour ${cap:.2f}", price)
    return None


def _cannot(gpu: GpuType, wants: Wants, auto: bool) -> str:
    """Why a type does not do, whatever it costs; empty when it does."""
    community = wants.cloud == "COMMUNITY"
    need = wants.min_vram_gb or (wants.need_gb if auto else 0.0)
    memory = (gpu.memory or 0.0) * wants.gpu_count
    most = (gpu.max_count.community if community else gpu.max_count.secure) if gpu.max_count else None
    if auto and gpu.manufacturer and gpu.manufacturer.upper() != "NVIDIA":
        return f"it is made by {gpu.manufacturer}, and training needs CUDA"
    if memory < need:
        return f"{memory:g} GB of memory, {need:g} GB are needed"
    if (gpu.community if community else gpu.secure) is False:
        return f"it is not offered in the {wants.cloud} cloud"
    if most is not None and most < wants.gpu_count:
        return f"at most {most} of them in one pod, {wants.gpu_count} are wanted"
    return ""


def nothing_left(choice: Choice, wants: Wants) -> RunpodError:
    """The error for a choice without a candidate."""
    details: dict[str, object] = {"passed_over": [{"gpu": each.gpu, "why": each.why} for each in choice.passed]}
    dear = sorted((each for each in choice.passed if each.price is not None), key=lambda each: each.price or 0.0)
    if dear:
        cheapest = dear[0]
        return PriceAbove(
            f"no GPU type is below max_price_per_hour ${wants.max_price_per_hour:.2f}: the cheapest that would do, "
            f"{cheapest.gpu}, is listed at ${cheapest.price:.2f} per hour",
            safe="nothing was rented",
            next="raise max_price_per_hour, or choose other gpu_types",
            details=details,
        )
    told = "; ".join(f"{each.gpu}: {each.why}" for each in choice.passed if "not among" not in each.why)
    return NoCapacity(
        f"no GPU type does what is wanted{f' ({told})' if told else ''}",
        safe="nothing was rented",
        next="choose other gpu_types, gpu_count, cloud or min_vram_gb",
        details=details,
    )
