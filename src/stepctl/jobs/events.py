"""``events.jsonl``: what a job says, one JSON object a line, append-only. ``type`` tells which.

No event holds a text of an example, a token or a secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

PHASES = ("judging", "imports", "model", "data", "eval", "steps", "saving", "files_stored", "manifest_stored")


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """``at`` is seconds since the epoch."""

    at: float = field(default_factory=time.time)


class Status(Event, frozen=True, kw_only=True, tag="status"):
    """A phase begins (one of PHASES, or ended ones: ``files_stored`` and ``manifest_stored`` tell what is done)."""

    phase: str
    text: str = ""


class Device(Event, frozen=True, kw_only=True, tag="device"):
    """Where and in what precision the job trains, and why."""

    device: str
    precision: str
    reason: str = ""


class Progress(Event, frozen=True, kw_only=True, tag="progress"):
    """One optimizer step: ``step`` is absolute, ``steps_done`` of ``steps_total`` of this job.

    ``tokens`` are those of the step, ``elapsed_sec`` and ``eta_sec`` of the steps phase, ``peak_memory_bytes`` of the
    process (CPU) or the allocator (CUDA).
    """

    step: int
    steps_done: int
    steps_total: int
    rows_done: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    supervised_tokens: int
    elapsed_sec: float
    eta_sec: float
    peak_memory_bytes: int


class Evaluation(Event, frozen=True, kw_only=True, tag="evaluation"):
    """Held-out loss, ``when`` is ``before`` or ``after`` the steps."""

    when: str
    loss: float
    step: int


class Warned(Event, frozen=True, kw_only=True, tag="warning"):
    """Something a person should know; the job goes on."""

    code: str
    message: str


class Committed(Event, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint is complete in the bucket."""

    checkpoint: str
    step: int
    rows_done: int
    bytes: int
    forked: bool


class Saved(Event, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint is complete on the machine; whoever follows the job fetches it and commits it (staged jobs)."""

    checkpoint: str
    step: int
    rows_done: int
    bytes: int


class Transfer(Event, frozen=True, kw_only=True, tag="transfer"):
    """Bytes on their way to or from the bucket."""

    bytes_done: int
    bytes_total: int
    elapsed_sec: float
    eta_sec: float


class Failed(Event, frozen=True, kw_only=True, tag="error"):
    """The job ends without finishing. ``details`` names rows and steps, never their text."""

    code: str
    message: str
    next: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """The last event."""

    state: str


AnyEvent = Status | Device | Progress | Evaluation | Warned | Committed | Saved | Transfer | Failed | Done
_DECODER = msgspec.json.Decoder(AnyEvent)
Sink = Callable[[AnyEvent], None]


class EventWriter:
    """Appends events to a file, one write each, so that a reader never sees two mixed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, event: AnyEvent) -> None:
        os.write(self._fd, msgspec.json.encode(event) + b"\n")


def decode_events(data: bytes) -> tuple[list[AnyEvent], int]:
    """Decode the whole lines of ``data``.

    Returns:
        The events and the number of bytes used; a torn last line is left for later. A line of an unknown kind (a newer
        release on the machine) is passed over.
    """
    end = data.rfind(b"\n") + 1
    events: list[AnyEvent] = []
    for line in data[:end].splitlines():
        try:
            events.append(_DECODER.decode(line))
        except msgspec.MsgspecError:
            continue
    return events, end
