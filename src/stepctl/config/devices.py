"""The words of ``train.device``, and how they go with ``train.gpu_ids``. Knows nothing of what a machine has."""

from __future__ import annotations

import re
from collections.abc import Sequence

FORMS = '"auto", "cpu", "cuda" or "cuda:N"'

_CUDA = re.compile(r"cuda(?::([0-9]{1,4}))?")
_GPU = re.compile(r"(?:gpu|cuda|nvidia)(?:[:_ -]?([0-9]{1,4}))?", re.IGNORECASE)
_MPS = ("mps", "metal", "xpu", "hip", "rocm", "tpu", "xla", "npu")


def is_device(word: str) -> bool:
    """Whether ``word`` has one of the forms that :data:`FORMS` names."""
    return word in ("auto", "cpu") or _CUDA.fullmatch(word) is not None


def gpu_of(word: str) -> int | None:
    """The N of ``cuda:N``, None for the other forms."""
    match = _CUDA.fullmatch(word)
    return int(match[1]) if match and match[1] else None


def meant(word: str) -> str | None:
    """The device that a wrong ``word`` most likely means, or None."""
    from stepctl.config.suggest import nearest

    gpu = _GPU.fullmatch(word.strip())
    if gpu:
        return f"cuda:{int(gpu[1])}" if gpu[1] else "cuda"
    if word.strip().lower() in _MPS:
        return None
    return nearest(word.strip().lower(), ("auto", "cpu", "cuda"))


def conflict(device: str, gpu_ids: Sequence[int]) -> str | None:
    """Why a device and a list of GPUs cannot both be meant; None when they can."""
    if not gpu_ids:
        return None
    listed, named = ", ".join(map(str, gpu_ids)), gpu_of(device)
    if device == "cpu":
        return f"train.device is cpu, and train.gpu_ids lists GPUs ({listed})"
    if named is not None and named not in gpu_ids:
        return f"train.device is {device}, and train.gpu_ids does not list {named} ({listed})"
    return None
