"""``python -m stepctl.trainer.probe``: what this Python can train with, as one JSON line (:class:`Probe`).

stdin may have one JSON object (:class:`Ask`): the settings to choose a device for, and the model that it is to hold.
"""

from __future__ import annotations

import importlib
import platform
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from msgspec import Struct, field

from stepctl import __version__
from stepctl.base.errors import StepctlError
from stepctl.config.model import LoraSettings, Precision
from stepctl.jobs.spec import ModelSpec
from stepctl.trainer import environment
from stepctl.trainer.speak import answer, leave

if TYPE_CHECKING:
    import torch

    from stepctl.models.memory import Size
    from stepctl.trainer.device import Placement

# The name makes the package load what is lazy in it.
PACKAGES = {
    "torch": "Tensor",
    "transformers": "AutoModelForCausalLM",
    "trl": "SFTTrainer",
    "peft": "get_peft_model",
    "datasets": "Dataset",
}
_SIDE = {"cpu": 256, "cuda": 4096}


class Ask(Struct, frozen=True, kw_only=True):
    """What is to be placed. Without a model the first GPU that may be used is taken. Unknown keys are passed over."""

    model: ModelSpec | None = None
    lora: LoraSettings = LoraSettings()
    device: str = "auto"
    precision: Precision = "auto"
    gpu_ids: tuple[int, ...] = ()
    max_length: int = 1
    method: str = "sft"
    hf_token: str | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One CUDA device; ``index`` is among the visible ones, ``capability`` its compute capability."""

    index: int
    name: str
    memory_bytes: int
    capability: str


class Refused(Struct, frozen=True, kw_only=True):
    """An error that a call with these settings would end with."""

    message: str
    next: str
    code: str
    exit_code: int


class Probe(Struct, frozen=True, kw_only=True):
    """``errors`` has why a package cannot be imported, by its name.

    ``bf16_speed`` is the measured speed of bf16 matrix products over fp32 ones on ``device`` (above 1: bf16 is
    faster). ``device`` (several: ``cuda:0,cuda:1``), ``precision`` and ``reason`` are what the settings lead to, or
    ``refused`` says why they lead nowhere. All of them are None without torch.
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
    refused: Refused | None = None


def probe(ask: Ask | None = None) -> Probe:
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
    found = {} if "torch" in errors else _of_torch(ask or Ask())
    return Probe(
        stepctl=__version__,
        python=platform.python_version(),
        executable=sys.executable,
        packages=packages,
        errors=errors,
        **found,
    )


def _of_torch(ask: Ask) -> dict[str, Any]:
    import torch

    from stepctl.trainer.device import visible_gpus

    gpus = visible_gpus()
    where = torch.device("cpu")
    found: dict[str, Any]
    try:
        placement = _place(ask)
        where = placement.device
        found = {"device": placement.where, "precision": placement.precision, "reason": placement.reason}
    except StepctlError as error:
        exit_code = int(error.exit_code)
        found = {"refused": Refused(message=error.message, next=error.next, code=error.code, exit_code=exit_code)}
    return {
        "cuda_available": bool(torch.cuda.is_available()),
        "gpus": [
            Gpu(
                index=g.index,
                name=g.name,
                memory_bytes=g.memory_bytes,
                capability=f"{g.capability[0]}.{g.capability[1]}",
            )
            for g in gpus
        ],
        "bf16_speed": round(_seconds(torch.float32, where) / _seconds(torch.bfloat16, where), 3),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **found,
    }


def _place(ask: Ask) -> Placement:
    from stepctl.trainer.device import choose

    model = ask.model
    if model is None:
        return choose(ask.device, ask.precision, ask.gpu_ids)

    def size() -> Size:
        from stepctl.trainer.methods import texts_at_once
        from stepctl.trainer.size import measure

        return measure(model, ask.lora, ask.max_length, ask.hf_token, texts_at_once(ask.method))

    return choose(ask.device, ask.precision, ask.gpu_ids, size)


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


def serve(stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Answer what is asked on ``stdin``, or about the defaults when that is empty."""
    return answer(lambda: probe(msgspec.json.decode(stdin.read() or b"{}", type=Ask)), stdout)


if __name__ == "__main__":
    leave(serve(sys.stdin.buffer, sys.stdout.buffer))
