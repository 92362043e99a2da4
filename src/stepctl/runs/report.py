"""The object that ``train --json`` prints: a contract with scripts."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from stepctl.jobs.result import Timings


class Report(Struct, kw_only=True):
    """How a call went.

    ``state`` is one of: planned (``--dry-run``), running (detached), done, stopped, cancelled, failed, needs_trace,
    commit_pending, lost_unretrieved (a pod ended before what was trained on it was fetched). ``loss`` is that of the
    last step, ``losses`` has one value a step of this call; ``eval_loss`` is the held-out loss after the steps,
    ``eval_loss_before`` before them. ``num_examples`` counts the rows of the trace, ``rows_done`` of ``rows_total``
    those that are trained under this key or digest. ``replayed`` says that nothing was trained because the key was
    answered already; ``forked`` that another writer's checkpoint is the head. ``exact`` is false when the lineage went
    on with another machine, precision, thread count, release or chat template on its way, or a GPU cannot repeat its
    sums, so that bit-equality with one unsplit call (of whole groups each) is not promised; a warning says where.
    ``timings_sec`` are seconds. ``pods`` are the receipts of what was rented, one for each pod asked for (see
    ``pod.json`` in docs/runpod.md), ``cost_usd`` what they cost as counted here, ``pod_alive`` whether one may be
    alive still, ``pods_left`` the earlier runs of the lineage of which that is true; ``ended_by`` is what ended a pod's
    job before its time (deadline, cost, stall). ``error`` is null unless the call failed.
    """

    run: str | None
    state: str
    method: str
    model: str
    lineage: str
    bucket: str
    target: str
    device: str | None = None
    precision: str | None = None
    num_examples: int = 0
    rows_done: int = 0
    rows_total: int = 0
    grad_accum: int = 0
    steps_run: int = 0
    from_step: int = 0
    global_step: int = 0
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    eval_loss: float | None = None
    eval_loss_before: float | None = None
    checkpoint: str | None = None
    resumed_from: str | None = None
    forked: bool = False
    key: str | None = None
    trace_sha256: str = ""
    supervised_tokens: int = 0
    replayed: bool = False
    exact: bool = True
    warnings: list[dict[str, Any]] = field(default_factory=list)
    elapsed_sec: float = 0.0
    timings_sec: Timings = field(default_factory=Timings)
    pods: list[dict[str, Any]] = field(default_factory=list)
    cost_usd: float | None = None
    pod_alive: bool = False
    pods_left: list[str] = field(default_factory=list)
    ended_by: str | None = None
    error: dict[str, Any] | None = None
    exit_code: int = 0
