"""Manifests: made from a folder, written, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepctl.base.errors import DamagedCheckpoint, StepctlError
from stepctl.base.files import TEMPORARY, sha256_file
from stepctl.lineage.buckets.base import is_safe
from stepctl.lineage.layout import LEDGER, MANIFEST, is_root, parse_checkpoint
from stepctl.lineage.records import MANIFEST_VERSION, FileEntry, Identity, Manifest, checkpoint_name

DEFAULT_LINEAGE = "main"


def damaged(
    lineage: str, checkpoint: str, path: str, problem: str, *, previous: str | None = None
) -> DamagedCheckpoint:
    """The error for one bad file of a checkpoint; ``previous`` is the complete checkpoint before it, if any."""
    go_on = f"go on from the one before it: stepctl lineage use {previous}{of(lineage)}" if previous else ""
    start = f"start anew: stepctl train FILE --fresh{of(lineage)}"
    return DamagedCheckpoint(
        f"checkpoint {checkpoint} of lineage {lineage} is damaged: {path} {problem}",
        safe="nothing was trained on it, and the stored files are as they were",
        next=f"restore that file (stepctl lineage verify{of(lineage)} checks it), or {go_on or start}",
        details={
            "lineage": lineage,
            "checkpoint": checkpoint,
            "path": path,
            "problem": problem,
            "previous": previous,
        },
    )


def of(lineage: str) -> str:
    """The option that a command to type needs for a lineage that has not the default name."""
    return "" if lineage == DEFAULT_LINEAGE else f" --lineage {lineage}"


def entries_of(folder: Path) -> tuple[FileEntry, ...]:
    """Size and sha256 of every file below ``folder``, sorted by path; a manifest and temporary files are left out.

    Raises:
        StepctlError: there is a link or another thing that is not a regular file.
    """
    entries = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StepctlError(f"{path} is not a regular file, so it cannot be part of a checkpoint")
        if path.is_file() and name != MANIFEST and not path.name.startswith(TEMPORARY):
            entries.append(FileEntry(path=name, size=path.stat().st_size, sha256=sha256_file(path)))
    return tuple(sorted(entries, key=lambda entry: entry.path))


def build_manifest(
    folder: Path,
    *,
    lineage: str,
    parent: str,
    step: int,
    run: str,
    key: str | None,
    trace_sha256: str,
    rows_done: int,
    rows_total: int,
    identity: Identity,
    settings: dict[str, Any],
    versions: dict[str, str],
    exact: bool,
    loss: float | None,
    created_at: str,
) -> Manifest:
    """The manifest of what is in ``folder``, ``ledger.jsonl`` included; fields as in :class:`Manifest`."""
    return Manifest(
        version=MANIFEST_VERSION,
        checkpoint=checkpoint_name(step, run),
        lineage=lineage,
        parent=parent,
        step=step,
        run=run,
        key=key,
        trace_sha256=trace_sha256,
        rows_done=rows_done,
        rows_total=rows_total,
        identity=identity,
        settings=settings,
        versions=versions,
        exact=exact,
        loss=loss,
        created_at=created_at,
        files=entries_of(folder),
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes to store; the same manifest gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes, lineage: str, checkpoint: str) -> Manifest:
    """Read the manifest that was stored for ``checkpoint``.

    Raises:
        StepctlError: it has a version that this release does not know.
        DamagedCheckpoint: it cannot be read, contradicts itself, or is another checkpoint's.
    """
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if type(version) is int and version > MANIFEST_VERSION:
            raise StepctlError(
                f"the manifest of checkpoint {checkpoint} of lineage {lineage} has version {version}, and this stepctl "
                f"reads version {MANIFEST_VERSION}",
                safe="nothing was changed",
                next="install a newer release of stepctl",
                code="manifest_version",
                details={"checkpoint": checkpoint, "path": MANIFEST, "problem": f"has version {version}"},
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise damaged(lineage, checkpoint, MANIFEST, f"({len(data)} bytes) cannot be read: {error}") from error
    if problem := manifest_problem(manifest, lineage, checkpoint):
        raise damaged(lineage, checkpoint, MANIFEST, problem)
    return manifest


def manifest_problem(manifest: Manifest, lineage: str, checkpoint: str) -> str | None:
    """What makes ``manifest`` unusable as that of ``checkpoint``, None when nothing does."""
    name = checkpoint_name(manifest.step, manifest.run)
    if (manifest.version, manifest.lineage) != (MANIFEST_VERSION, lineage):
        return f"has version {manifest.version} and is of lineage {manifest.lineage}"
    if manifest.checkpoint != checkpoint or name != checkpoint or parse_checkpoint(checkpoint) is None:
        return f"is of checkpoint {manifest.checkpoint}, step {manifest.step} of run {manifest.run}"
    if not follows(manifest.parent, manifest.step):
        return f"names {manifest.parent!r} as the parent of step {manifest.step}"
    return _files_problem(manifest.files)


def follows(parent: str, step: int) -> bool:
    """Whether ``parent`` can be the parent of a checkpoint at ``step``: a root, or a checkpoint of fewer steps."""
    parsed = parse_checkpoint(parent)
    return parsed[0] < step if parsed else is_root(parent) and is_safe(parent) and "/" not in parent


def _files_problem(files: Sequence[FileEntry]) -> str | None:
    paths = [entry.path for entry in files]
    if len(set(paths)) != len(paths):
        return "lists a file twice"
    for path in paths:
        if not is_safe(path) or path == MANIFEST or path.rsplit("/", 1)[-1].startswith(TEMPORARY):
            return f"lists {path!r}, which cannot be a file of a checkpoint"
    return None if LEDGER in paths else f"does not list {LEDGER}"
