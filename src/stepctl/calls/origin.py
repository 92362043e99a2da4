"""``--init-from``: the adapter that a new lineage starts from."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepctl.base.errors import UsageError
from stepctl.base.files import make_dirs, sha256_file
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.records import Manifest
from stepctl.lineage.store import fetch_checkpoint, read_lineage

ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
_LINEAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(@(?P<step>\d+))?")


@dataclass(frozen=True)
class Origin:
    """An adapter to start from: its digest, its LoRA shape, and where it is."""

    sha256: str
    lora: dict[str, Any]
    folder: Path | None = None
    manifest: Manifest | None = None
    lineage: str | None = None

    def place(self, bucket: Bucket, to: Path) -> None:
        """Put the adapter's files into the new folder ``to``, verified."""
        shutil.rmtree(to, ignore_errors=True)
        make_dirs(to)
        if self.manifest is not None and self.lineage is not None:
            fetch_checkpoint(bucket, self.lineage, self.manifest.checkpoint, None, to)
        elif self.folder is not None:
            for name in ADAPTER_FILES:
                shutil.copyfile(self.folder / name, to / name)
        if sha256_file(to / ADAPTER_FILES[0]) != self.sha256:
            raise UsageError("the adapter to start from changed while it was read", next="run the command again")


def find_origin(word: str, bucket: Bucket, project: Path) -> Origin:
    """What ``word`` names: a folder with an adapter, or ``LINEAGE[@STEP]`` of the same bucket.

    Raises:
        UsageError: neither is there, or it holds no adapter in safetensors form.
    """
    folder = (project / Path(word).expanduser()).absolute()
    if folder.is_dir():
        return _from_folder(folder)
    found = _LINEAGE.fullmatch(word)
    if found is None:
        raise UsageError(f"--init-from {word}: there is no such folder", next="name a PEFT folder or LINEAGE[@STEP]")
    return _from_lineage(bucket, found["name"], int(found["step"]) if found["step"] else None)


def _from_folder(folder: Path) -> Origin:
    for name in ADAPTER_FILES:
        if not (folder / name).is_file():
            raise UsageError(f"{folder} has no {name}", next="name a folder that PEFT saved with safetensors")
    try:
        config = json.loads((folder / ADAPTER_FILES[1]).read_bytes())
        lora = {
            "r": int(config["r"]),
            "alpha": int(config["lora_alpha"]),
            "dropout": float(config.get("lora_dropout") or 0.0),
            "target_modules": tuple(sorted(config["target_modules"])),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / ADAPTER_FILES[1]} is no LoRA configuration ({error})") from None
    return Origin(sha256_file(folder / ADAPTER_FILES[0]), lora, folder=folder)


def _from_lineage(bucket: Bucket, name: str, step: int | None) -> Origin:
    state = read_lineage(bucket, name)
    path = [info.manifest for info in state.checkpoints if info.on_path]
    chosen = state.head if step is None else next((m for m in path if m.step == step), None)
    if chosen is None:
        kept = ", ".join(str(m.step) for m in path) or "none"
        raise UsageError(
            f"lineage {name!r} has no checkpoint{'' if step is None else f' at step {step}'} (kept steps: {kept})",
            next=f"stepctl status --lineage {name}",
        )
    entry = next(f for f in chosen.files if f.path == ADAPTER_FILES[0])
    identity = chosen.identity
    lora = {
        "r": identity.r,
        "alpha": identity.alpha,
        "dropout": identity.dropout,
        "target_modules": identity.target_modules,
    }
    return Origin(entry.sha256, lora, manifest=chosen, lineage=name)
