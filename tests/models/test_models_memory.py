"""Which GPUs hold a model: a pure function of its size and of total memories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepctl.base.errors import Exit, UsageError
from stepctl.models.memory import Gpu, Size, activations, arrange, estimate, parameters

GIB = 1 << 30
LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
SIZE = Size(config=LLAMA_8B, parameters=parameters(LLAMA_8B), block=128256 * 4096, adapter=6_800_000, tokens=1024)


def gpus(*gib: int) -> list[Gpu]:
    return [Gpu(i, f"GPU of {g}", g * GIB, (9, 0)) for i, g in enumerate(gib)]


def test_the_formula_knows_a_model_of_eight_billion() -> None:
    assert parameters(LLAMA_8B) == pytest.approx(8.03e9, rel=0.01)


def test_attention_scores_are_counted_on_a_cpu_alone() -> None:
    with_scores = activations(LLAMA_8B, 1024, 2, scores=True)
    assert with_scores - activations(LLAMA_8B, 1024, 2, scores=False) == 1024 * 1024 * 32 * 32 * 2
    assert estimate(LLAMA_8B, 1024, 2) > SIZE.peak(2)


def test_one_gpu_that_holds_it_is_enough() -> None:
    found = arrange(gpus(80, 80), SIZE, 2)
    assert ([g.index for g in found.gpus], found.budgets, found.tight) == ([0], {}, False)


def test_the_first_that_holds_it_and_the_order_is_the_callers() -> None:
    assert [g.index for g in arrange(gpus(8, 80, 80), SIZE, 2).gpus] == [1]
    assert [g.index for g in arrange(gpus(80, 80)[::-1], SIZE, 2).gpus] == [1]


def test_a_model_too_large_for_one_is_spread_with_room_for_activations() -> None:
    found = arrange(gpus(16, 16), SIZE, 2)
    assert [g.index for g in found.gpus] == [0, 1]
    assert found.balanced and not found.tight
    usable = int(16 * GIB * 0.9)
    assert all(budget < usable for budget in found.budgets.values())
    assert sum(found.budgets.values()) > SIZE.weights(2)
    assert sum(usable - budget for budget in found.budgets.values()) >= SIZE.peak(2) - SIZE.weights(2) - 2


def test_unequal_gpus_get_their_share_and_the_last_what_it_holds() -> None:
    found = arrange(gpus(15, 8), SIZE, 2)
    assert not found.balanced
    assert found.budgets[0] > found.budgets[1]
    assert sum(found.budgets.values()) >= SIZE.weights(2)


def test_where_only_the_weights_fit_it_is_tried_and_said() -> None:
    long = replace(SIZE, tokens=32768)
    one = arrange(gpus(24), long, 2)
    assert ([g.index for g in one.gpus], one.tight) == ([0], True)
    several = arrange(gpus(16, 16), long, 2)
    assert (len(several.budgets), several.tight) == (2, True)


@pytest.mark.parametrize("given", [(8,), (8, 8), (4, 4, 4, 4)])
def test_what_no_gpu_holds_is_refused_with_the_numbers(given: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"needs 15\.1 GiB .* that can be planned with") as caught:
        arrange(gpus(*given), SIZE, 2)
    assert (caught.value.exit_code, caught.value.code) == (Exit.USAGE, "does_not_fit")
    assert f"{sum(given) * 0.9:.1f} GiB" in caught.value.message
    assert caught.value.safe and caught.value.next


@given(st.lists(st.integers(4, 96), min_size=1, max_size=8), st.integers(1, 8192), st.sampled_from([2, 4]))
def test_an_arrangement_plans_with_no_more_than_there_is(memory: list[int], tokens: int, width: int) -> None:
    size, there = replace(SIZE, tokens=tokens), gpus(*memory)
    try:
        found = arrange(there, size, width)
    except UsageError:
        assert sum(g.usable for g in there) < size.weights(width) + 1.25 * size.block * width
        return
    assert found == arrange(there, size, width)
    assert all(0 < budget <= there[i].usable for i, budget in found.budgets.items())
    assert bool(found.budgets) == (len(found.gpus) > 1)
    if found.budgets:
        assert sum(found.budgets.values()) + len(memory) >= size.weights(width)
        assert all(size.peak(width) > g.usable for g in there)
    elif not found.tight:
        assert found.gpus[0].usable >= size.peak(width)
