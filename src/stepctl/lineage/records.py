"""The records that a lineage is made of. Written once, never rewritten."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

MANIFEST_VERSION = 1
ROOT = "root"
"""Parent of the first checkpoint of a lineage; ``--fresh`` makes further roots named ``root-<run>``."""


class Identity(Struct, frozen=True, kw_only=True):
    """What must match from call to call.

    ``model`` is a Hub id or the path that was given; ``revision`` a commit of the Hub, or ``files:<sha256>`` of a
    folder's content (then the path does not matter). ``origin`` is ``sha256`` of the adapter the lineage started from.
    """

    model: str
    revision: str
    method: str
    r: int
    alpha: int
    dropout: float
    target_modules: tuple[str, ...]
    vocab_size: int
    origin: str | None = None


class FileEntry(Struct, frozen=True, kw_only=True):
    """One file of a checkpoint: path relative to it (forward slashes), size in bytes, hex sha256."""

    path: str
    size: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """The small file that makes a checkpoint complete.

    ``checkpoint`` is its name, ``<step, 8 digits>-<run>``; ``parent`` the checkpoint or root it extends;
    ``rows_done`` of ``rows_total`` rows of the trace with ``trace_sha256`` are trained in it; ``settings`` the
    effective train settings; ``versions`` package versions, device, precision, thread count, kernel settings and the
    chat template's digest;
    ``exact`` False when bit-equality with another split of the same rows is not promised, because these changed
    somewhere on the way here.
    """

    version: int
    checkpoint: str
    lineage: str
    parent: str
    step: int
    run: str
    key: str | None
    trace_sha256: str
    rows_done: int
    rows_total: int
    identity: Identity
    settings: dict[str, Any]
    versions: dict[str, str]
    exact: bool
    loss: float | None
    created_at: str
    files: tuple[FileEntry, ...]


class Change(Struct, frozen=True, kw_only=True):
    """A train setting, or ``versions.<name>``, that a run has otherwise than what it started from; None: had none."""

    name: str
    before: Any
    after: Any


class LedgerLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One checkpoint of the ancestry, kept for ever in ``ledger.jsonl`` of each checkpoint (its own line is the last).

    A run that committed on its way has several lines; its last one counts. ``changed`` is against the checkpoint that
    the run started from (nothing at a root), ``rows_sha256`` says which rows of the trace train. These two and
    ``exact`` are None in ledgers of before they were recorded.
    """

    checkpoint: str
    parent: str
    run: str
    key: str | None
    trace_sha256: str
    rows_done: int
    rows_total: int
    from_step: int
    step: int
    loss: float | None
    created_at: str
    changed: tuple[Change, ...] | None = None
    exact: bool | None = None
    rows_sha256: str | None = None


class Choice(Struct, frozen=True, kw_only=True):
    """An append-only record that moves the start of the head's walk: ``at`` is a checkpoint or a root.

    ``passed_over`` names the children that ``at`` had then (and damaged ones that may be): the walk takes none of
    them, so that a rollback ends at ``at`` and the next checkpoint stored after it becomes the head. ``left`` is the
    head that it leads away from, as far as that was known.
    """

    at: str
    reason: str
    run: str | None
    created_at: str
    passed_over: tuple[str, ...] = ()
    left: str | None = None


def checkpoint_name(step: int, run: str) -> str:
    """``<step>-<run>``; the step has 8 digits so that names sort by it."""
    return f"{step:08d}-{run}"
