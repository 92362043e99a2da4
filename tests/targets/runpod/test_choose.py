"""Which types are tried, in which order, at which price, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.targets.runpod.acting import IMAGE, RUN

from stepctl.base.errors import Exit, UsageError
from stepctl.targets.runpod.choose import Choice, choose, nothing_left
from stepctl.targets.runpod.errors import NoCapacity, PriceAbove
from stepctl.targets.runpod.records import GpuType, MaxCount, Price
from stepctl.targets.runpod.wants import Wants


def gpu(name: str, memory: float, price: Any, availability: str | None = "HIGH", **more: Any) -> GpuType:
    values = {
        "manufacturer": "NVIDIA",
        "secure": True,
        "community": True,
        "max_count": MaxCount(8, 4),
        "price": Price(price, price if price is None else float(price) / 2),
    }
    return GpuType(id=f"NVIDIA {name}", name=name, memory=memory, availability=availability, **{**values, **more})


CATALOG = [
    gpu("Big", 80, 1.64),
    gpu("Small", 24, 0.44),
    gpu("Rare", 24, 0.2, "NONE"),
    gpu("Few", 24, 0.3, "LOW", max_count=MaxCount(1, 1)),
    gpu("Many", 24, 0.44, "MEDIUM"),
    gpu("Old", 8, 0.1),
    gpu("Text", 48, "0.60"),
    gpu("Odd", 192, 2.49, manufacturer="AMD"),
    gpu("Free", 48, None),
    gpu("Home", 48, 0.3, secure=False),
]


def of(**wants: Any) -> Choice:
    return choose(CATALOG, Wants(run=RUN, max_hours=1, image=IMAGE, **wants))


def ids(choice: Choice) -> list[str]:
    return [candidate.gpu.name for candidate in choice.candidates]


def why(choice: Choice, name: str) -> str:
    return next(each.why for each in choice.passed if each.gpu == f"NVIDIA {name}")


def test_auto_is_the_cheapest_that_is_enough_with_stock_first() -> None:
    choice = of(need_gb=20)
    assert ids(choice) == ["Few", "Small", "Many", "Text", "Big", "Free", "Rare"]
    assert why(choice, "Old") == "8 GB of memory, 20 GB are needed"
    assert "AMD" in why(choice, "Odd")
    assert why(choice, "Home") == "it is not offered in the SECURE cloud"


def test_memory_counts_over_all_gpus_of_the_pod() -> None:
    choice = of(need_gb=90, gpu_count=2)
    assert ids(choice) == ["Text", "Big", "Free"]
    assert why(choice, "Small") == "48 GB of memory, 90 GB are needed"
    assert of(need_gb=90, gpu_count=4).candidates[0].price == 4 * 0.44
    assert why(of(need_gb=20, gpu_count=2), "Few") == "at most 1 of them in one pod, 2 are wanted"


def test_a_given_need_beats_the_estimate() -> None:
    assert ids(of(need_gb=90, min_vram_gb=8))[0] == "Old"
    assert ids(of(need_gb=1, min_vram_gb=60)) == ["Big"]


def test_named_types_come_in_their_order_whatever_the_estimate_says() -> None:
    choice = of(gpu_types=("NVIDIA Big", "NVIDIA Old", "NVIDIA Small", "NVIDIA Big"), need_gb=20)
    assert ids(choice) == ["Big", "Old", "Small"]
    assert why(choice, "Many") == "it is not among gpu_types"
    assert ids(of(gpu_types=("NVIDIA Old", "NVIDIA Big"), min_vram_gb=20)) == ["Big"]
    assert ids(of(gpu_types=("NVIDIA Rare", "NVIDIA Big"))) == ["Big", "Rare"]
    assert ids(of(gpu_types=("NVIDIA Odd",))) == ["Odd"]


def test_named_types_before_auto() -> None:
    assert ids(of(gpu_types=("NVIDIA Big", "auto"), need_gb=40)) == ["Big", "Text", "Free"]


def test_the_price_is_that_of_the_pod_and_of_the_cloud() -> None:
    [candidate] = of(gpu_types=("NVIDIA Small",), gpu_count=3).candidates
    assert candidate.price == pytest.approx(1.32)
    [candidate] = of(gpu_types=("NVIDIA Text",), cloud="COMMUNITY").candidates
    assert candidate.price == 0.3


def test_what_is_above_the_cap_is_not_asked_for() -> None:
    choice = of(need_gb=20, max_price_per_hour=0.44)
    assert ids(choice) == ["Few", "Small", "Many", "Rare"]
    assert why(choice, "Text") == "$0.60 per hour is above max_price_per_hour $0.44"
    assert why(choice, "Free") == "it has no listed price, and max_price_per_hour is set"
    assert ids(of(gpu_types=("NVIDIA Small",), gpu_count=2, max_price_per_hour=0.6)) == []


@pytest.mark.parametrize(
    ("word", "suggested"), [("Small", "NVIDIA Small"), ("nvidia smal", "NVIDIA Small"), ("NVIDIA Manx", "NVIDIA Many")]
)
def test_an_unknown_type_is_an_error_with_a_suggestion(word: str, suggested: str) -> None:
    with pytest.raises(UsageError, match="no GPU type") as caught:
        of(gpu_types=("NVIDIA Big", word))
    assert suggested in caught.value.next
    assert caught.value.exit_code == Exit.USAGE
    with pytest.raises(UsageError) as caught:
        of(gpu_types=("zzzzzzz",))
    assert "auto" in caught.value.next


def test_nothing_left_for_its_price() -> None:
    wants = Wants(run=RUN, max_hours=1, image=IMAGE, need_gb=20, max_price_per_hour=0.1)
    error = nothing_left(choose(CATALOG, wants), wants)
    assert isinstance(error, PriceAbove)
    assert error.exit_code == Exit.CAPPED
    assert "NVIDIA Rare, is listed at $0.20 per hour" in error.message


def test_nothing_left_at_all() -> None:
    wants = Wants(run=RUN, max_hours=1, image=IMAGE, need_gb=2000)
    error = nothing_left(choose(CATALOG, wants), wants)
    assert isinstance(error, NoCapacity)
    assert error.exit_code == Exit.FAILED
    assert "NVIDIA Big: 80 GB of memory, 2000 GB are needed" in error.message
    assert len(error.details["passed_over"]) == len(CATALOG)  # type: ignore[arg-type]
