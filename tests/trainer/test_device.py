"""The device that was named, or an error; the precision that it does well."""

from __future__ import annotations

import pytest

from stepctl.base.errors import Exit, UsageError

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
    import torch

    from stepctl.trainer.device import on_cuda

    placement = on_cuda(torch.device("cuda", 0), asked, capability)
    assert placement.precision == precision
    assert said in placement.reason
