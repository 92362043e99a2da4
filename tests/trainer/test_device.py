"""The device that was named, or an error; the precision that it does well."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.trainer.tiny import Job, make_rows, run

from stepctl.base.errors import Exit, UsageError
from stepctl.models.memory import Gpu, Size

if TYPE_CHECKING:
    from stepctl.trainer.device import Placement

pytestmark = pytest.mark.torch


def test_auto_on_a_machine_without_a_gpu_is_fp32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from stepctl.trainer.device import choose

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    placement = choose("auto", "auto")
    assert (placement.device.type, placement.precision, placement.dtype) == ("cpu", "fp32", torch.float32)
    assert "no GPU was found" in placement.reason


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_named_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    import torch

    from stepctl.trainer.device import choose

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=f"device {device} is not there") as caught:
        choose(device, "auto")
    assert caught.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:-1", "mps", "", "CPU"])
def test_a_device_that_is_no_word_of_ours(device: str) -> None:
    from stepctl.trainer.device import choose

    with pytest.raises(UsageError, match="is not known"):
        choose(device, "auto")


def test_bf16_on_a_cpu_is_only_as_asked_and_says_what_it_costs() -> None:
    from stepctl.trainer.device import choose

    assert choose("cpu", "auto").precision == "fp32"
    placement = choose("cpu", "bf16")
    assert placement.precision == "bf16"
    assert "slower" in placement.reason


GIB = 1 << 30


def gpus(*gib: int, capability: tuple[int, int] = (9, 0)) -> list[Gpu]:
    return [Gpu(i, f"G{i}", g * GIB, capability) for i, g in enumerate(gib)]


def size_of(gib: float, tokens: int = 512) -> Size:
    """A model whose weights take ``gib`` in bf16."""
    return Size(config={}, parameters=int(gib * GIB / 2), block=GIB // 8, adapter=0, tokens=tokens)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Gpu]], None]:
    """Make choose() see GPUs that are not there."""
    from stepctl.trainer import device

    def see(found: list[Gpu]) -> None:
        monkeypatch.setattr(device, "visible_gpus", lambda: found)
        monkeypatch.setattr("torch.version.cuda", "13.0")

    return see


@pytest.mark.parametrize(
    ("capability", "asked", "precision", "said"),
    [
        ((7, 5), "auto", "fp32", "has no bf16"),
        ((7, 5), "bf16", "bf16", "emulates"),
        ((8, 0), "auto", "bf16", "has bf16"),
        ((9, 0), "auto", "bf16", "9.0"),
        ((12, 0), "fp32", "fp32", "as asked"),
    ],
)
def test_a_gpu_gets_bf16_where_its_hardware_has_it(
    capability: tuple[int, int], asked: str, precision: str, said: str
) -> None:
    from stepctl.trainer.device import on_gpus

    placement = on_gpus(gpus(8, capability=capability), asked, None)
    assert placement.precision == precision
    assert said in placement.reason
    assert (placement.where, placement.loading) == ("cuda:0", {})


def test_bf16_is_used_only_where_all_gpus_in_use_have_it() -> None:
    from stepctl.trainer.device import on_gpus

    old, new = gpus(24, capability=(7, 5))[0], Gpu(1, "G1", 24 * GIB, (9, 0))
    spread = on_gpus([replace(old, memory_bytes=40 * GIB), new], "auto", size_of(22))
    assert (spread.where, spread.precision) == ("cuda:0,cuda:1", "fp32")
    # 15 GiB in bf16 are 30 in fp32: the newer one holds it alone, and so keeps its bf16.
    alone = on_gpus([old, new], "auto", size_of(15))
    assert (alone.where, alone.precision) == ("cuda:1", "bf16")


@pytest.mark.parametrize(
    ("device", "gpu_ids", "where"),
    [
        ("auto", (), "cuda:0"),
        ("cuda", (), "cuda:0"),
        ("cuda:2", (), "cuda:2"),
        ("auto", (2, 1), "cuda:2"),
        ("cuda", (1,), "cuda:1"),
        ("cuda:1", (2, 1), "cuda:1"),
    ],
)
def test_one_gpu_holds_it(
    there: Callable[[list[Gpu]], None], device: str, gpu_ids: tuple[int, ...], where: str
) -> None:
    from stepctl.trainer.device import choose

    there(gpus(24, 24, 24))
    placement = choose(device, "auto", gpu_ids, lambda: size_of(4))
    assert (placement.where, placement.spread, str(placement.device)) == (where, False, where)


def test_a_model_too_large_for_one_goes_to_the_gpus_that_may_be_used(there: Callable[[list[Gpu]], None]) -> None:
    from stepctl.trainer.device import choose

    there(gpus(24, 24, 24))
    assert choose("auto", "auto", (), lambda: size_of(40)).where == "cuda:0,cuda:1,cuda:2"
    two = choose("cuda", "auto", (2, 0), lambda: size_of(40))
    assert two.where == "cuda:0,cuda:2"
    assert two.loading["device_map"] == "auto"
    assert sorted(two.loading["max_memory"]) == [0, 2]
    assert "2 GPUs together" in two.reason
    there(gpus(24, 40))
    assert choose("auto", "auto", (), lambda: size_of(40)).loading["device_map"] == "sequential"


def test_a_named_gpu_never_gets_company_and_too_large_is_said_before_loading(
    there: Callable[[list[Gpu]], None],
) -> None:
    from stepctl.trainer.device import choose

    there(gpus(24, 24))
    with pytest.raises(UsageError, match=r"needs 40\.0 GiB .* the GPU has 21\.6 GiB") as caught:
        choose("cuda:1", "auto", (), lambda: size_of(40))
    assert caught.value.code == "does_not_fit"
    with pytest.raises(UsageError, match=r"needs 60\.0 GiB .* the 2 GPUs have together 43\.2 GiB"):
        choose("auto", "auto", (), lambda: size_of(60))


@pytest.mark.parametrize(
    ("device", "gpu_ids", "said"),
    [
        ("auto", (0, 7), "GPU 7 of train.gpu_ids is not there: torch finds 2 CUDA devices, 0: G0, 1: G1"),
        ("cuda:1", (1, 7), "GPU 7 of train.gpu_ids is not there"),
        ("cuda:5", (), "device cuda:5 is not there"),
        ("cuda:5", (5,), "device cuda:5 is not there"),
        ("cpu", (0,), "train.device is cpu"),
        ("cuda:0", (1,), "does not list 0"),
    ],
)
def test_a_listed_gpu_that_is_not_there_is_an_error(
    there: Callable[[list[Gpu]], None], device: str, gpu_ids: tuple[int, ...], said: str
) -> None:
    from stepctl.trainer.device import choose

    there(gpus(24, 24))
    with pytest.raises(UsageError, match=said) as caught:
        choose(device, "auto", gpu_ids, lambda: size_of(1))
    assert caught.value.exit_code == Exit.USAGE


def test_listed_gpus_on_a_machine_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from stepctl.trainer.device import choose

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"GPU 0 of train\.gpu_ids is not there"):
        choose("auto", "auto", (0,))


def spread_over(*indices: int) -> Placement:
    import torch

    from stepctl.trainer.device import Placement

    return Placement(torch.device("cuda", 0), "bf16", "", budgets=dict.fromkeys(indices, GIB))


class Loaded:
    """As much of a model as ``landed`` looks at."""

    def __init__(self, device_map: dict[str, Any], embeddings: str) -> None:
        import torch

        self.hf_device_map = device_map
        self._weight = types.SimpleNamespace(device=torch.device(embeddings))

    def get_input_embeddings(self) -> Any:
        return types.SimpleNamespace(weight=self._weight)


@pytest.mark.parametrize("away", ["cpu", "disk", 3])
def test_a_model_that_was_put_elsewhere_is_refused(away: object) -> None:
    from stepctl.trainer.device import landed

    model = Loaded({"model.embed_tokens": 0, "model.layers.0": 1, "lm_head": away}, "cuda:0")
    word = f"cuda:{away}" if away == 3 else away
    with pytest.raises(UsageError, match=f"the first lm_head, would be on {word}"):
        landed(spread_over(0, 1), model)


def test_inputs_go_to_the_embeddings_and_the_map_is_told() -> None:
    from stepctl.trainer.device import landed

    found = {"model.embed_tokens": 1, "model.layers.0": 1, "model.layers.1": 2, "lm_head": 1}
    placement = landed(spread_over(1, 2), Loaded(found, "cuda:1"))
    assert str(placement.device) == "cuda:1"
    assert placement.device_map == (
        "cuda:1 model.embed_tokens to model.layers.0; cuda:2 model.layers.1; cuda:1 lm_head"
    )


def test_a_model_on_one_device_is_as_it_was() -> None:
    from stepctl.trainer.device import choose, landed

    placement = choose("cpu", "auto")
    assert landed(placement, object()) is placement


def test_sums_are_strictly_repeatable_but_where_the_model_cannot() -> None:
    """torch's lenient mode leaves the backward of its fused attention on a GPU unordered, with a warning alone."""
    import torch

    from stepctl.trainer.device import make_repeatable

    def unordered() -> None:
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))

    def broken() -> None:
        raise RuntimeError("shapes differ")

    def modes() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    try:
        assert make_repeatable(lambda: None)
        assert modes() == (True, False)
        assert not make_repeatable(unordered)
        assert modes() == (True, True)
        with pytest.raises(RuntimeError, match="shapes"):
            make_repeatable(broken)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_rehearsal_goes_through_the_model_and_changes_nothing(job: Job, tmp_path: Path, method: str) -> None:
    import torch

    from stepctl.trainer.scoring import rehearse

    rows = make_rows(4, method=method)
    plain, engine = job.by(method).load(), job.by(method).load()
    trainable, seen = engine._ready()[1], []
    parameter = next(iter(trainable.parameters.values()))
    handle = parameter.register_hook(lambda gradient: seen.append(gradient))
    rehearse(trainable)
    handle.remove()
    assert len(seen) == 1
    assert all(p.grad is None for p in trainable.parameters.values())
    assert [s.loss for s in run(engine, rows)] == [s.loss for s in run(plain, rows)]
    other = plain._ready()[1].parameters
    assert all(torch.equal(p, other[name]) for name, p in trainable.parameters.items())
