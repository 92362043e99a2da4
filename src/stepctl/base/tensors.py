"""What a safetensors file says it holds, read without torch: 8 bytes of length, that much JSON, the tensors' bytes.

Only the header is read. It must account for every byte of the file, which is how a file that was cut short shows.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

MAX_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library."""

LFS = b"version https://git-lfs"
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


class BrokenTensors(ValueError):
    """Not a whole safetensors file; the text says why and goes on from the file's name."""


@dataclass(frozen=True)
class Tensor:
    """One tensor: its type as safetensors calls it (``F32``), its shape, and where in the data it begins and ends."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name.

    Raises:
        BrokenTensors: it is a link, empty, a Git LFS pointer, cut, or contradicts itself.
        OSError: it cannot be read.
    """
    if path.is_symlink():
        raise BrokenTensors("is a link, and links are not followed")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise BrokenTensors("is not a file")
        size = about.st_size
        start = file.read(8)
        _check_start(start + file.read(len(LFS) - 8), size)
        length = struct.unpack("<Q", start)[0]
        if length > MAX_HEADER:
            raise BrokenTensors(f"is no safetensors file: its header would have {length} bytes")
        if 8 + length > size:
            raise BrokenTensors(f"is cut: it has {size} bytes, and its header alone ends at byte {8 + length}")
        file.seek(8)
        header = file.read(length)
    return _check_layout(_decode(header), 8 + length, size)


def _check_start(start: bytes, size: int) -> None:
    if size == 0:
        raise BrokenTensors("is empty")
    if start == LFS:
        raise BrokenTensors("is a Git LFS pointer, not the file it points to (`git lfs pull` was not run)")
    if size < 8:
        raise BrokenTensors(f"is cut: it has {size} bytes")


def _decode(header: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BrokenTensors("has a header that names something twice")
        return found

    try:
        found = json.loads(header, object_pairs_hook=unique)
    except BrokenTensors:
        raise
    except (ValueError, RecursionError):
        raise BrokenTensors("has a header that is not JSON") from None
    if not isinstance(found, dict):
        raise BrokenTensors("has a header that is no JSON object")
    return found


def _check_layout(header: dict[str, Any], data: int, size: int) -> dict[str, Tensor]:
    header.pop("__metadata__", None)
    tensors = {name: _tensor(name, value) for name, value in header.items()}
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if tensor.begin != at:
            what = "overlaps the one before it" if tensor.begin < at else "leaves a gap before it"
            raise BrokenTensors(f"has a header in which {name} {what}")
        at = tensor.end
    if data + at != size:
        what = "is cut" if data + at > size else "is too long"
        raise BrokenTensors(f"{what}: it has {size} bytes, and its header says {data + at}")
    return tensors


def _tensor(name: str, value: Any) -> Tensor:
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise BrokenTensors(f"has a header that does not describe {name}") from None
    numbers = [begin, end, *shape] if isinstance(shape, list) else [None]
    if any(type(number) is not int or number < 0 for number in numbers) or dtype not in _BITS:
        raise BrokenTensors(f"has a header that does not describe {name}")
    if end - begin != prod(shape) * _BITS[dtype] // 8:
        raise BrokenTensors(f"has a header that gives {name} {end - begin} bytes for {dtype} of shape {shape}")
    return Tensor(dtype, tuple(shape), begin, end)
