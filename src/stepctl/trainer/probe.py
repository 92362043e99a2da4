"""``python -m stepctl.trainer.probe``: what this Python can train with, as one JSON line (:class:`Probe`)."""

from __future__ import annotations

import importlib
import platform
import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from stepctl import __version__
from stepctl.trainer import environment
from stepctl.trainer.speak import answer, leave

if TYPE_CHECKING:
    import torch

# The name makes the package load what is lazy in it.
PACKAGES = {
    "torch": "Tensor",
    "transformers": "AutoModelForCausalLM",
    "trl": "SFTTrainer",
    "peft": "get_peft_model",
    "datasets": "Dataset",
}
_SIDE = {"cpu": 256, "cuda": 4096}


class Gpu(Struct, frozen=True, kw_only=True):
    """One CUDA device; ``capability`` is its compute capability."""

    name: str
    memory_bytes: int
    capability: str


class Probe(Struct, frozen=True, kw_only=True):
    """``errors`` has why a package cannot be imported, by its name.

    ``bf16_speed`` is the measured speed of bf16 matrix products over fp32 ones on ``device`` (above 1: bf16 is
    faster). ``device``, ``precision`` and ``reason`` are what "auto" chooses. All of them are None without torch.
    """

    stepctl: str
    python: str
    executable: str
    packages: dict[str, str]
    errors: dict[str, str]
    cuda_available: bool = False
    gpus: list[Gpu] = field(default_factory=list)
    bf16_speed: float | None = None
    threads: int | None = None
    cpu_capability: str | None = None
    device: str | None = None
    precision: str | None = None
    reason: str | None = None


def probe() -> Probe:
    """Import the packages, ask torch for its devices, and time one kind of matrix product on the one chosen.

    Raises:
        UsageError: this is one of several processes.
    """
    environment.prepare()
    packages: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, member in PACKAGES.items():
        try:
            module = importlib.import_module(name)
            getattr(module, member)
            packages[name] = str(module.__version__)
        except Exception as error:  # noqa: BLE001 - a broken package is what is being asked about
            errors[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    found = {} if "torch" in errors else _of_torch()
    return Probe(
        stepctl=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        packages=packages,
        errors=errors,
        **found,
    )


def _of_torch() -> dict[str, Any]:
    import torch

    from stepctl.trainer.device import choose

    available = torch.cuda.is_available()
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count() if available else 0)]
    placement = choose("auto", "auto")
    return {
        "cuda_available": available,
        "gpus": [Gpu(name=d.name, memory_bytes=d.total_memory, capability=f"{d.major}.{d.minor}") for d in devices],
        "bf16_speed": round(_seconds(torch.float32, placement.device) / _seconds(torch.bfloat16, placement.device), 3),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": str(placement.device),
        "precision": placement.precision,
        "reason": placement.reason,
    }


def _seconds(dtype: torch.dtype, device: torch.device) -> float:
    """The quickest of three square matrix products, after one to warm up."""
    import torch

    side = _SIDE[device.type]
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # waits for the GPU
        times.append(time.perf_counter() - start)
    return min(times[1:])


if __name__ == "__main__":
    leave(answer(probe, sys.stdout.buffer))
