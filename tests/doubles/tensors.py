"""Safetensors files and PEFT folders made byte by byte, right and wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def pack(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with this header; ``length`` is what it says the header's length is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensors(shapes: Mapping[str, tuple[int, ...]], fill: bytes = b"\0\0\0\0") -> bytes:
    """A whole file of float32 tensors."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return pack(header, fill * (at // 4))


def lora_shapes(
    r: int = 8, hidden: int = 8, targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj"), layers: int = 1
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an adapter of a model whose layers are all square."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for target in targets:
            module = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            found[f"{module}.lora_A.weight"] = (r, hidden)
            found[f"{module}.lora_B.weight"] = (hidden, r)
    return found


def lora_config(**changes: Any) -> dict[str, Any]:
    """An adapter_config.json as PEFT writes it, as far as it matters."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "bias": "none",
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "rank_pattern": {},
        "init_lora_weights": True,
        **changes,
    }


def peft_folder(folder: Path, weights: bytes | None = None, **changes: Any) -> Path:
    """A PEFT folder that can be started from, but for ``changes`` of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(lora_config(**changes)))
    (folder / "adapter_model.safetensors").write_bytes(tensors(lora_shapes()) if weights is None else weights)
    return folder
