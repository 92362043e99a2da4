"""Where a job computes and in what precision: chosen by what the device does well, and said."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from stepctl.base.errors import StepctlError, UsageError
from stepctl.config import devices
from stepctl.models.memory import Arrangement, Gpu, Size, arrange, gigabytes
from stepctl.trainer.engine import OutOfMemory

_NATIVE_BF16 = (8, 0)
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "DefaultCPUAllocator", "ALLOC_FAILED")
_WIDTH = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Placement:
    """``precision`` is that of the frozen base and of the matrix products; the adapter is always fp32.

    ``device`` is where inputs go: all of the model, or its input embeddings when it is spread. ``budgets`` are bytes
    of weights by GPU, empty unless the model is spread; ``device_map`` then tells, once it is loaded, what is where.
    """

    device: torch.device
    precision: str
    reason: str
    budgets: Mapping[int, int] = field(default_factory=dict)
    balanced: bool = True
    device_map: str = ""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def spread(self) -> bool:
        """Whether the model's layers are on several devices."""
        return bool(self.budgets)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices in use."""
        return tuple(torch.device("cuda", index) for index in self.budgets) or (self.device,)

    @property
    def where(self) -> str:
        """For people and reports: ``cpu``, ``cuda:0`` or ``cuda:0,cuda:1``."""
        return ",".join(map(str, self.devices))

    @property
    def loading(self) -> dict[str, Any]:
        """What ``from_pretrained`` is told; the CPU and the disk get no memory to put layers in."""
        if not self.spread:
            return {}
        return {"device_map": "auto" if self.balanced else "sequential", "max_memory": dict(self.budgets)}


def choose(
    device: str, precision: str, gpu_ids: Sequence[int] = (), measure: Callable[[], Size] | None = None
) -> Placement:
    """Resolve the settings ``train.device``, ``train.precision`` and ``train.gpu_ids``.

    The choice follows from the settings, the model's size and the GPUs' total memory, not from what is free.

    Args:
        device, precision, gpu_ids: the settings.
        measure: the model's size, asked for when a GPU is there; without it the first GPU is taken.

    Raises:
        UsageError: a device is not there, no such word is known, or the GPUs do not hold the model. A named device
            never becomes another one.
    """
    if not devices.is_device(device):
        raise UsageError(f"device {device!r} is not known", next=f"set train.device to {devices.FORMS}")
    if why := devices.conflict(device, gpu_ids):
        raise UsageError(why, next="give one of the two alone, or a list that has the device")
    if device == "cpu":
        return _on_cpu(precision, named=True)
    gpus = _usable(device, gpu_ids, visible_gpus())
    if not gpus:
        return _on_cpu(precision, named=False)
    return on_gpus(gpus, precision, measure() if measure else None)


def visible_gpus() -> list[Gpu]:
    """The CUDA devices that torch sees, which CUDA_VISIBLE_DEVICES may have cut down and renumbered."""
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [Gpu(i, p.name, p.total_memory, (p.major, p.minor)) for i, p in enumerate(found)]


def _usable(device: str, gpu_ids: Sequence[int], visible: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that the settings name, in their order; none for "auto" where there is none."""
    named = devices.gpu_of(device)
    wanted = [named] if named is not None else list(gpu_ids) or [gpu.index for gpu in visible]
    if device == "cuda" and not visible:
        raise _absent("device cuda is not there", visible)
    by_index = {gpu.index: gpu for gpu in visible}
    absent = [index for index in (*wanted, *gpu_ids) if index not in by_index]
    if absent:
        what = f"device {device}" if absent[0] == named else f"GPU {absent[0]} of train.gpu_ids"
        raise _absent(f"{what} is not there", visible)
    return [by_index[index] for index in wanted]


def _absent(what: str, visible: Sequence[Gpu]) -> UsageError:
    if torch.version.cuda is None:
        found = "this torch is built without CUDA"
    else:
        listed = "".join(f", {gpu.index}: {gpu.name}" for gpu in visible)
        found = f"torch finds {len(visible)} CUDA device{'' if len(visible) == 1 else 's'}{listed}"
    return UsageError(
        f"{what}: {found}",
        safe="nothing was trained",
        next='set train.device to "auto" or "cpu" and list no other GPUs, or train on a machine that has them',
        code="no_device",
    )


def _on_cpu(precision: str, *, named: bool) -> Placement:
    device, found = torch.device("cpu"), "CPU as asked" if named else "no GPU was found"
    if precision == "bf16":
        return Placement(
            device, "bf16", f"{found}; bf16 as asked: it rounds gradients by percents and can be far slower"
        )
    return Placement(device, "fp32", f"{found}; fp32 is exact there and bf16 seldom faster")


def on_gpus(gpus: Sequence[Gpu], asked: str, size: Size | None) -> Placement:
    """The placement on some of ``gpus``, at least one, in order of preference.

    Raises:
        UsageError: they do not hold the model, all together.
    """
    chosen = _arranged(gpus, asked, size)
    precision, why = _precision(chosen.gpus, asked)
    if len(chosen.gpus) > 1 and size is not None:
        need = gigabytes(size.peak(_WIDTH[precision]))
        why = f"{len(chosen.gpus)} GPUs together: about {need} are needed, more than one of them has; {why}"
    if chosen.tight and size is not None:
        why += f"; the weights fit, but an example of {size.tokens} tokens may not: lower max_length if memory runs out"
    return Placement(
        torch.device("cuda", chosen.gpus[0].index), precision, why, budgets=chosen.budgets, balanced=chosen.balanced
    )


def _arranged(gpus: Sequence[Gpu], asked: str, size: Size | None) -> Arrangement:
    if size is None:
        return Arrangement((gpus[0],))
    # An older GPU among them may have no bf16, and then none of them uses it: one alone is tried first.
    for gpu in gpus:
        width = _WIDTH[_precision([gpu], asked)[0]]
        if size.peak(width) <= gpu.usable:
            return Arrangement((gpu,))
    return arrange(gpus, size, _WIDTH[_precision(gpus, asked)[0]])


def _precision(gpus: Sequence[Gpu], asked: str) -> tuple[str, str]:
    """bf16 only where all of ``gpus`` have it in hardware, unless asked; and why."""
    least = min(gpu.capability for gpu in gpus)
    gpu, native = f"GPU of capability {least[0]}.{least[1]}", least >= _NATIVE_BF16
    if asked == "fp32":
        return "fp32", f"{gpu}; fp32 as asked"
    if asked == "bf16":
        note = "bf16 as asked" if native else "bf16 as asked: this GPU only emulates it, slowly"
        return "bf16", f"{gpu}; {note}"
    if native:
        return "bf16", f"{gpu} has bf16; the adapter stays fp32"
    return "fp32", f"{gpu} has no bf16"


def landed(placement: Placement, model: Any) -> Placement:
    """The placement as loading made it: where the input embeddings are, and what is on which GPU.

    Raises:
        UsageError: a part of the model is not on the GPUs that were chosen; training it from the CPU or the disk
            would take many times as long, and nobody asked for it.
    """
    if not placement.spread:
        return placement
    found = {name: _device_word(device) for name, device in (getattr(model, "hf_device_map", None) or {}).items()}
    allowed = {str(device) for device in placement.devices}
    away = {name: word for name, word in found.items() if word not in allowed}
    if away:
        name, word = next(iter(away.items()))
        raise UsageError(
            f"the model does not fit on {placement.where}: {len(away)} parts, the first {name}, would be on {word}",
            safe="nothing was trained",
            next="list more GPUs in train.gpu_ids, take a smaller model, or another machine",
            code="does_not_fit",
        )
    device = model.get_input_embeddings().weight.device
    if not found or str(device) not in allowed:
        raise StepctlError(f"the model went to {device}, not to {placement.where}", code="placement")
    return replace(placement, device=device, device_map=device_summary(found))


def _device_word(device: Any) -> str:
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def device_summary(found: Mapping[str, str]) -> str:
    """What is where, in the model's order: ``cuda:0 model.embed_tokens to model.layers.5; cuda:1 ...``."""
    parts = []
    for device, group in groupby(found.items(), key=lambda item: item[1]):
        names = [name for name, _ in group]
        parts.append(f"{device} {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else ""))
    return "; ".join(parts)


def settle(placement: Placement) -> None:
    """Make the chosen GPU the current one, with repeatable sums. Nothing to do on a CPU."""
    if placement.device.type == "cuda":
        torch.cuda.set_device(placement.device)
        for device in placement.devices:
            torch.cuda.reset_peak_memory_stats(device)
        torch.use_deterministic_algorithms(True, warn_only=True)


def make_repeatable(attempt: Callable[[], object]) -> bool:
    """Have all sums made in the same order each time; False when ``attempt`` shows an operation that cannot be.

    torch's lenient mode alone leaves the backward of its fused attention unordered.

    Args:
        attempt: trains a little; what it raises for another reason is raised.
    """
    torch.use_deterministic_algorithms(True)
    try:
        attempt()
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        torch.use_deterministic_algorithms(True, warn_only=True)
        return False
    return True


def cpu_name() -> str:
    """The processor's model: libraries choose instructions and the size of blocks by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def device_name(placement: Placement) -> str:
    """The GPU's name, ``cpu``, or all GPUs' names."""
    if placement.device.type != "cuda":
        return "cpu"
    return ", ".join(str(torch.cuda.get_device_name(device)) for device in placement.devices)


def peak_memory_bytes(device: torch.device) -> int:
    """Peak of the allocator (CUDA; of all GPUs that this process uses) or of the process's resident set (CPU)."""
    if device.type == "cuda":
        return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))
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
