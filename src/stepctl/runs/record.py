"""``run.json``: one call's record. No secret and no text of an example is ever in it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

RUN_VERSION = 1

UNFINISHED = ("created", "starting", "running")
"""States in which the run may still change by itself; all others are how it ended, or wait for somebody."""

STATES = (*UNFINISHED, "done", "stopped", "cancelled", "failed", "lost_unretrieved", "needs_trace", "commit_pending")


class ProcessId(Struct, frozen=True, kw_only=True):
    """A process, told from a later one with the same number by when it started (see ``process.py``)."""

    pid: int
    started: str


class TraceRecord(Struct, frozen=True, kw_only=True):
    """Where the examples came from: absolute paths (``-`` for stdin), a digest of their bytes, and which rows train."""

    paths: tuple[str, ...]
    sha256: str
    rows_total: int
    rows_start: int = 0
    rows_sha256: str = ""


class RunRecord(Struct, kw_only=True):
    """One call.

    ``parent`` is what its first checkpoint extends. ``client`` is the process that made the record, ``job`` the one
    that trains. ``settings`` are the effective ones (model, lora, train), ``target_options`` those of the target.
    ``staged`` says that its checkpoints stay on the machine until this side fetches and commits them.
    ``forecast`` is what the plan said of a pod.
    ``counts`` has the rows of each label (KTO). ``report`` is what ``--json`` printed when it ended.
    """

    version: int = RUN_VERSION
    run: str
    created_at: str
    updated_at: str
    state: str
    method: str
    model: str
    bucket: str
    lineage: str
    target: str
    key: str | None
    trace: TraceRecord
    eval: TraceRecord | None
    parent: str
    from_step: int
    steps_planned: int
    new_root: bool
    client: ProcessId
    settings: dict[str, Any] = field(default_factory=dict)
    target_options: dict[str, Any] = field(default_factory=dict)
    staged: bool = False
    job: ProcessId | None = None
    finished_at: str | None = None
    warnings: list[dict[str, Any]] = field(default_factory=list)
    forecast: dict[str, Any] = field(default_factory=dict)
    expect_step: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    report: dict[str, Any] | None = None
