"""``--init-from``: the adapter that a new lineage starts from."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepctl.base.errors import StepctlError, UsageError
from stepctl.base.files import make_dirs, sha256_file
from stepctl.calls.peft_folder import ADAPTER_FILES, WEIGHTS, PeftAdapter, read_adapter, shape_problem, unusable
from stepctl.config.model import LoraSettings
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.manifest import damaged
from stepctl.lineage.records import Identity, Manifest
from stepctl.lineage.store import fetch_checkpoint, read_lineage
from stepctl.models.resolve import ResolvedModel, is_folder, resolve_model

_LINEAGE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(@(?P<step>\d{1,18}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Origin:
    """An adapter to start from: its digest, its LoRA shape, and where it is (a PEFT ``folder``, or a checkpoint)."""

    sha256: str
    lora: dict[str, Any]
    folder: Path | None = None
    adapter: PeftAdapter | None = None
    manifest: Manifest | None = None

    @property
    def identity(self) -> Identity | None:
        """That of the lineage it comes from; None for a folder."""
        return self.manifest.identity if self.manifest else None

    def place(self, bucket: Bucket, to: Path) -> None:
        """Put the adapter's files into the new folder ``to``, verified."""
        shutil.rmtree(to, ignore_errors=True)
        make_dirs(to)
        if self.manifest is not None:
            lineage, name = self.manifest.lineage, self.manifest.checkpoint
            fetch_checkpoint(bucket, lineage, name, None, to, only=ADAPTER_FILES)
        elif self.folder is not None:
            for name in ADAPTER_FILES:
                shutil.copyfile(self.folder / name, to / name, follow_symlinks=False)
        if (to / WEIGHTS).is_symlink() or sha256_file(to / WEIGHTS) != self.sha256:
            raise UsageError("the adapter to start from changed while it was read", next="run the command again")


def find_origin(word: str, bucket: Bucket, project: Path) -> Origin:
    """What ``word`` names: a folder when it is an absolute path, as settings make all folders; else a lineage.

    Raises:
        UsageError: it is not there, or holds no adapter that can be trained on.
        DamagedCheckpoint: the lineage's head is damaged.
    """
    folder = Path(word)
    if folder.is_absolute():
        if not folder.is_dir():
            raise UsageError(f"--init-from: {word} is not a folder", next="name a PEFT folder or LINEAGE[@STEP]")
        adapter = read_adapter(folder)
        return Origin(sha256_file(folder / WEIGHTS), adapter.lora, folder=folder, adapter=adapter)
    found = _LINEAGE.fullmatch(word)
    if found is None:
        raise UsageError(
            f"--init-from {word}: that is neither a lineage nor a folder",
            next="name LINEAGE, LINEAGE@STEP, or a PEFT folder with a slash (./folder)",
        )
    hint = f"./{word} names the folder" if (project / word).is_dir() else "stepctl lineage ls"
    return _from_lineage(bucket, found["name"], int(found["step"]) if found["step"] else None, hint)


def _from_lineage(bucket: Bucket, name: str, step: int | None, hint: str) -> Origin:
    state = read_lineage(bucket, name)
    path = [info.manifest for info in state.checkpoints if info.on_path]
    chosen = state.head if step is None else next((m for m in path if m.step == step), None)
    if chosen is None:
        kept = ", ".join(str(m.step) for m in path) or "none"
        raise UsageError(
            f"lineage {name!r} has no checkpoint{'' if step is None else f' at step {step}'} (kept steps: {kept})",
            next=hint,
        )
    entry = next((file for file in chosen.files if file.path == WEIGHTS), None)
    if entry is None:
        raise damaged(name, chosen.checkpoint, WEIGHTS, "is not in its manifest")
    identity = chosen.identity
    lora = {name: getattr(identity, name) for name in ("r", "alpha", "dropout", "target_modules")}
    return Origin(entry.sha256, lora, manifest=chosen)


def require_fits(origin: Origin, lora: LoraSettings, model: ResolvedModel) -> None:
    """Raise unless a new lineage of this model and shape can start from ``origin``. Dropout may be another.

    Raises:
        UsageError: it is of another base model, rank, alpha or target modules; all that differs is listed.
    """
    lines = [
        f"{what}: the adapter has {has}, this call asks for {wants}"
        for what, has, wants in (
            ("LoRA rank", origin.lora["r"], lora.r),
            ("LoRA alpha", origin.lora["alpha"], lora.alpha),
            ("LoRA target modules", _names(origin.lora["target_modules"]), _names(lora.target_modules)),
        )
        if has != wants
    ]
    if (other := _other_model(origin, model)) is not None:
        lines.insert(0, other)
    if lines:
        raise UsageError(
            "the adapter to start from does not fit this call:\n" + "\n".join(f"  {line}" for line in lines),
            safe="nothing was trained",
            next="leave these settings out to take them from the adapter, or name the base model it was trained on",
            code="init_from",
            details={"differences": lines},
        )
    if origin.adapter is not None and origin.folder is not None:
        problem = shape_problem(origin.adapter, model.config)
        if problem is not None:
            raise unusable(origin.folder)(problem)


def _names(modules: tuple[str, ...]) -> str:
    return ", ".join(sorted(set(modules)))


def _other_model(origin: Origin, model: ResolvedModel) -> str | None:
    """The line that says so when the adapter is known to be of another base model."""
    if origin.identity is not None:
        base, revision = origin.identity.model, origin.identity.revision
        same = revision == model.revision and (model.commit is None or base == model.source)
        of = f"{base} ({revision})"
    elif origin.adapter is not None and origin.adapter.base is not None:
        base, revision = origin.adapter.base, origin.adapter.revision or ""
        same = _may_be(base, revision, model)
        of = f"{base} ({revision})" if revision else base
    else:
        return None
    return None if same else f"base model: the adapter is of {of}, this call trains {model.source} ({model.revision})"


def _may_be(base: str, revision: str, model: ResolvedModel) -> bool:
    """A folder's path means nothing by itself: it may have been on another machine, or hold a copy of a Hub model."""
    if is_folder(base):
        return model.commit is not None or not Path(base).is_dir() or _content(base) in (None, model.revision)
    if base.startswith((".", "~")) or model.commit is None:
        return True
    other_commit = _COMMIT.fullmatch(revision) is not None and revision != model.commit
    return base == model.source and not other_commit


def _content(folder: str) -> str | None:
    try:
        return resolve_model(folder, None, None).revision
    except (StepctlError, OSError):
        return None
