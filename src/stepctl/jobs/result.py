"""``result.json``: how a job ended. Written by rename, before ``exit_code``."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

RESULT_VERSION = 1


class Timings(Struct, kw_only=True):
    """Seconds spent in each phase."""

    imports: float = 0.0
    model: float = 0.0
    data: float = 0.0
    steps: float = 0.0
    save: float = 0.0
    commit: float = 0.0
    eval: float = 0.0


class JobResult(Struct, kw_only=True):
    """``state`` is one of done, stopped, cancelled, failed, needs_trace, commit_pending.

    ``checkpoint`` is the newest one made (committed unless the state is ``commit_pending``), None when no step was
    saved. ``losses`` has one value a step of this job. ``exact`` is False when bit-equality with another split of the
    rows is not promised. ``error`` has code, message, next and details, and when the job failed ``exit_code``: 2 where
    what was asked for cannot be had.
    """

    version: int = RESULT_VERSION
    state: str
    step: int
    rows_done: int
    checkpoint: str | None = None
    forked: bool = False
    losses: list[float] = field(default_factory=list)
    eval_loss_before: float | None = None
    eval_loss: float | None = None
    device: str | None = None
    precision: str | None = None
    supervised_tokens: int = 0
    exact: bool = True
    peak_memory_bytes: int = 0
    timings_sec: Timings = field(default_factory=Timings)
    error: dict[str, Any] | None = None
