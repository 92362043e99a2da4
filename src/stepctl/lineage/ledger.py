"""The ledger: what a lineage has trained, one line for each checkpoint of an ancestry; it outlives pruning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepctl.lineage.layout import is_root
from stepctl.lineage.manifest import damaged, follows
from stepctl.lineage.records import Change, LedgerLine, Manifest, checkpoint_name

Ledger = tuple[LedgerLine, ...]
_OF_MANIFEST = ("checkpoint", "parent", "run", "key", "trace_sha256", "rows_done", "rows_total", "step")


class LedgerBroken(ValueError):
    """The lines do not form one chain from a root."""


def ledger_for(parent_ledger: Sequence[LedgerLine], line: LedgerLine) -> bytes:
    """The content of ``ledger.jsonl`` of the checkpoint that ``line`` describes.

    Args:
        parent_ledger: the parent's ledger, empty when the parent is a root.
        line: the new checkpoint's own line.

    Raises:
        LedgerBroken: the line does not extend that ledger.
    """
    lines = (*parent_ledger, line)
    _check_chain(lines)
    return b"".join(msgspec.json.encode(each) + b"\n" for each in lines)


def decode_ledger(data: bytes) -> Ledger:
    """Read ``ledger.jsonl``.

    Raises:
        LedgerBroken: it cannot be read, or is not one chain.
    """
    try:
        lines = tuple(msgspec.json.decode(line, type=LedgerLine) for line in data.splitlines())
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LedgerBroken(f"cannot be read: {error}") from error
    if not lines:
        raise LedgerBroken("is empty")
    _check_chain(lines)
    return lines


def check_ledger(data: bytes, manifest: Manifest) -> Ledger:
    """Read a checkpoint's ledger and hold it against its manifest.

    Raises:
        DamagedCheckpoint: it cannot be read, is not one chain, or its last line is not that of the manifest.
    """
    try:
        ledger = decode_ledger(data)
        wrong = [name for name in _OF_MANIFEST if getattr(ledger[-1], name) != getattr(manifest, name)]
        if wrong:
            raise LedgerBroken(f"differs from the manifest in {', '.join(wrong)}")
    except LedgerBroken as error:
        raise damaged(manifest.lineage, manifest.checkpoint, "ledger.jsonl", str(error)) from error
    return ledger


def runs_of(ledger: Sequence[LedgerLine]) -> dict[str, LedgerLine]:
    """The last line of each run, oldest run first."""
    return {line.run: line for line in ledger}


def by_key(ledger: Sequence[LedgerLine], key: str) -> LedgerLine | None:
    """The newest line with that key."""
    return next((line for line in reversed(ledger) if line.key == key), None)


def by_trace(ledger: Sequence[LedgerLine], sha256: str) -> LedgerLine | None:
    """The newest line of a trace with that digest."""
    return next((line for line in reversed(ledger) if line.trace_sha256 == sha256), None)


def changes(before: Manifest | None, settings: Mapping[str, Any], versions: Mapping[str, str]) -> tuple[Change, ...]:
    """What a run with these train settings and versions has otherwise than the checkpoint that it starts from.

    A setting that ``before`` did not know yet is none that anybody changed; a version that came or went is.
    """
    if before is None:
        return ()
    old, new = before.versions, dict(versions)
    pairs = [(name, before.settings.get(name), settings[name]) for name in sorted(before.settings.keys() & settings)]
    pairs += [(f"versions.{name}", old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]
    return tuple(Change(name=name, before=was, after=now) for name, was, now in pairs if _differ(was, now))


def _differ(was: object, now: object) -> bool:
    """As JSON has them: what was stored came back as lists."""
    return msgspec.json.encode(was) != msgspec.json.encode(now)


def _check_chain(lines: Sequence[LedgerLine]) -> None:
    before: LedgerLine | None = None
    for line in lines:
        starts_well = is_root(line.parent) if before is None else line.parent == before.checkpoint
        if not starts_well or not follows(line.parent, line.step):
            after = before.checkpoint if before else "a root"
            raise LedgerBroken(f"does not continue from {after} with {line.checkpoint} of parent {line.parent}")
        if checkpoint_name(line.step, line.run) != line.checkpoint:
            raise LedgerBroken(f"gives {line.checkpoint} the step {line.step} and the run {line.run}")
        before = line
