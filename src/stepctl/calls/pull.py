"""``lineage pull``: a verified copy of a checkpoint, as a folder that PEFT loads."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from stepctl.base.errors import UsageError
from stepctl.base.files import TEMPORARY, fsync_dir, make_dirs, sha256_bytes, sha256_file, write_atomic
from stepctl.calls.choosing import COPYING, pick_name, pick_step
from stepctl.calls.peft_folder import ADAPTER_FILES
from stepctl.calls.world import World
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Bucket
from stepctl.lineage.manifest import damaged
from stepctl.lineage.records import FileEntry, Manifest
from stepctl.lineage.store import fetch_checkpoint, look

CARD = "README.md"
_LEFT_OVER_SEC = 24 * 3600.0


class Pulled(Struct, kw_only=True):
    """``state`` is done, or unchanged when the folder ``path`` held the very same files already; then none is written.

    ``files`` are names relative to ``path``; ``bytes`` their sizes together.
    """

    state: str
    lineage: str
    bucket: str
    checkpoint: str
    step: int
    run: str
    model: str
    path: str
    files: list[str]
    bytes: int
    exit_code: int = 0


def pull(world: World, to: Path, *, step: int | None = None, name: str | None = None, whole: bool = False) -> Pulled:
    """Copy the adapter of the head, or of another checkpoint, into the new or empty folder ``to``, all or nothing.

    Args:
        step: that of a checkpoint on the head's path.
        name: of any complete checkpoint, or a unique start of one.
        whole: all files of the checkpoint and its manifest, not the adapter's alone.

    Raises:
        UsageError: no such checkpoint, or ``to`` cannot be used; nothing is written.
        DamagedCheckpoint: a wanted file is not what the manifest says; nothing is written.
    """
    bucket, lineage = world.bucket(), world.loaded.settings.lineage
    target = _target(to)
    manifest = _pick(bucket, lineage, step, name)
    wanted, written = _contents(bucket, manifest, whole)
    unchanged = target.is_dir() and any(target.iterdir())
    if unchanged:
        _require_same(target, wanted, written)
    else:
        make_dirs(target.parent)
        with _beside(target) as folder:
            fetch_checkpoint(bucket, lineage, manifest.checkpoint, None, folder, only=[entry.path for entry in wanted])
            for path, data in written.items():
                write_atomic(folder / path, data)
            folder.replace(target)
            fsync_dir(target.parent)
    return Pulled(
        state="unchanged" if unchanged else "done",
        lineage=lineage,
        bucket=world.loaded.settings.bucket,
        checkpoint=manifest.checkpoint,
        step=manifest.step,
        run=manifest.run,
        model=manifest.identity.model,
        path=str(target),
        files=sorted([*(entry.path for entry in wanted), *written]),
        bytes=sum(entry.size for entry in wanted) + sum(map(len, written.values())),
    )


def _target(to: Path) -> Path:
    """Where it goes, without links."""
    try:
        target = Path(os.path.realpath(to.expanduser()))
    except RuntimeError:
        raise UsageError(f"{to} names the home of a user who is not known", next="name a new folder") from None
    there = next(path for path in (target, *target.parents) if path.exists())
    if not there.is_dir():
        raise UsageError(f"{there} is not a folder", safe="it was not touched", next="name a new or empty folder")
    if target == Path.cwd():
        raise UsageError("the current folder cannot be replaced", next="name a new folder")
    return target


def _pick(bucket: Bucket, lineage: str, step: int | None, name: str | None) -> Manifest:
    view = look(bucket, lineage)
    if name is not None:
        return pick_name(view, name, COPYING)
    if step is not None:
        return pick_step(view, step, COPYING)
    if view.problem is not None:
        raise view.problem
    if view.head is None or view.head.manifest is None:
        raise UsageError(
            f"lineage {lineage} has no checkpoint yet", next="stepctl lineage ls shows the others", code="no_checkpoint"
        )
    return view.head.manifest


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A temporary folder beside ``target``; what killed calls left there long ago is removed."""
    start = f"{TEMPORARY}pull-{target.name}-"
    for old in target.parent.glob(f"{TEMPORARY}pull-*"):
        if old.name.startswith(start) and old.lstat().st_mtime < time.time() - _LEFT_OVER_SEC:
            shutil.rmtree(old, ignore_errors=True)
    folder = target.parent / f"{start}{os.urandom(8).hex()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _contents(bucket: Bucket, manifest: Manifest, whole: bool) -> tuple[list[FileEntry], dict[str, bytes]]:
    """The files to copy, and those that are written beside them."""
    wanted = [entry for entry in manifest.files if whole or entry.path in ADAPTER_FILES]
    missing = set(ADAPTER_FILES) - {entry.path for entry in wanted}
    if missing:
        raise damaged(manifest.lineage, manifest.checkpoint, min(missing), "is not in its manifest")
    written = {CARD: model_card(manifest).encode()}
    if whole:
        written[layout.MANIFEST] = bucket.read(layout.manifest_at(manifest.lineage, manifest.checkpoint))
    return wanted, written


def _require_same(target: Path, wanted: list[FileEntry], written: dict[str, bytes]) -> None:
    """The folder has something in it already: that is good only if it is all of this and nothing else."""
    digests = {entry.path: entry.sha256 for entry in wanted} | {path: sha256_bytes(d) for path, d in written.items()}
    if not _holds(target, digests):
        raise UsageError(
            f"{target} is not empty, and what it holds is something else",
            safe="it was not touched",
            next="name a new or empty folder",
            code="not_empty",
        )


def _holds(target: Path, digests: dict[str, str]) -> bool:
    found = set()
    for path in target.rglob("*"):
        name = path.relative_to(target).as_posix()
        if path.is_symlink() or (not path.is_dir() and name not in digests):
            return False
        if path.is_file():
            found.add(name)
    return found == set(digests) and all(sha256_file(target / name) == digest for name, digest in digests.items())


def model_card(manifest: Manifest) -> str:
    """A small README.md for the adapter. Of a model that is a folder only the last part of its path is named."""
    identity = manifest.identity
    hub = not Path(identity.model).is_absolute()
    base = identity.model if hub else Path(identity.model).name
    about = {
        "base model": base,
        "revision": identity.revision,
        "method": identity.method,
        "LoRA": f"r {identity.r}, alpha {identity.alpha}, on {', '.join(identity.target_modules)}",
        "lineage": manifest.lineage,
        "step": str(manifest.step),
        "run": manifest.run,
        "checkpoint": manifest.checkpoint,
    }
    head = {"library_name": "peft", **({"base_model": base} if hub else {}), "tags": ["lora", "stepctl"]}
    front = "\n".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in head.items())
    rows = "\n".join(f"| {name} | {text} |" for name, text in about.items())
    return (
        f"---\n{front}\n---\n\n# Adapter at step {manifest.step} of lineage {manifest.lineage}\n\n"
        f"A LoRA adapter that stepctl trained.\n\n| | |\n|---|---|\n{rows}\n\n"
        "```python\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM\n\n"
        f"base = AutoModelForCausalLM.from_pretrained({base!r})\n"
        'model = PeftModel.from_pretrained(base, "this folder")\n'
        "```\n"
    )
