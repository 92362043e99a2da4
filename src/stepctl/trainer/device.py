"""Where a job computes and in what precision: chosen by what the device does well, and said."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from stepctl.base.errors import UsageError
from stepctl.trainer.engine import OutOfMemory

_NATIVE_BF16 = (8, 0)
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "DefaultCPUAllocator", "ALLOC_FAILED")


@dataclass(frozen=True)
class Placement:
    """``precision`` is that of the frozen base and of the matrix products; the adapter is always fp32."""

    device: torch.device
    precision: str
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


def choose(device: str, precision: str) -> Placement:
    """Resolve the settings ``train.device`` and ``train.precision``.

    Raises:
        UsageError: the device is not there, or no such word is known. A named device never becomes another one.
    """
    where = _device(device)
    if where.type == "cpu":
        return _on_cpu(where, precision, named=device != "auto")
    major, minor = torch.cuda.get_device_capability(where)
    return on_cuda(where, precision, (major, minor))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise UsageError(f"device {name!r} is not known", next='set train.device to "auto", "cpu", "cuda" or "cuda:N"')
    index, count = int(match[1] or 0), torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        if torch.version.cuda is None:
            found = "this torch is built without CUDA"
        else:
            found = f"torch finds {count} CUDA device{'' if count == 1 else 's'}"
        raise UsageError(
            f"device {name} is not there: {found}",
            safe="nothing was trained",
            next='set train.device to "auto" or "cpu", or train on a machine with that GPU',
        )
    return torch.device("cuda", index)


def _on_cpu(device: torch.device, precision: str, *, named: bool) -> Placement:
    found = "CPU as asked" if named else "no GPU was found"
    if precision == "bf16":
        return Placement(
            device, "bf16", f"{found}; bf16 as asked: it rounds gradients by percents and can be far slower"
        )
    return Placement(device, "fp32", f"{found}; fp32 is exact there and bf16 seldom faster")


def on_cuda(device: torch.device, precision: str, capability: tuple[int, int]) -> Placement:
    """The placement on a GPU of a compute ``capability``: bf16 only where the hardware has it, unless asked."""
    gpu, native = f"GPU of capability {capability[0]}.{capability[1]}", capability >= _NATIVE_BF16
    if precision == "fp32":
        return Placement(device, "fp32", f"{gpu}; fp32 as asked")
    if precision == "bf16":
        note = "bf16 as asked" if native else "bf16 as asked: this GPU only emulates it, slowly"
        return Placement(device, "bf16", f"{gpu}; {note}")
    if native:
        return Placement(device, "bf16", f"{gpu} has bf16; the adapter stays fp32")
    return Placement(device, "fp32", f"{gpu} has no bf16")


def settle(placement: Placement) -> None:
    """Make the chosen GPU the current one, with repeatable sums. Nothing to do on a CPU."""
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)
        torch.cuda.reset_peak_memory_stats(placement.device)
        torch.use_deterministic_algorithms(True, warn_only=True)


def device_name(device: torch.device) -> str:
    """The GPU's name, or ``cpu``."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "cpu"


def peak_memory_bytes(device: torch.device) -> int:
    """Peak of the allocator (CUDA) or of the process's resident set (CPU)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn every way in which torch says that memory ran out into :class:`OutOfMemory`."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(_first_line(error)) from error
    except RuntimeError as error:
        if any(word in str(error) for word in _NO_MEMORY):
            raise OutOfMemory(_first_line(error)) from error
        raise


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no memory left"])[0]
