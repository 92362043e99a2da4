"""What client and agent say to each other about a job on another machine: one JSON object a line.

Unknown fields are passed over and missing ones have a default, so that the two may be of different releases.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

PROTOCOL = 1
MARK = "stepctl-says"
"""The line that ends whatever a login shell prints before the command's own output."""

PIECE = 1 << 20
"""Bytes of a file that one answer holds at most."""


class Ask(Struct, kw_only=True, omit_defaults=True):
    """A request. ``op`` is one of hello, poll, request, signal, find, have, remove; the others are its arguments."""

    op: str
    job: str = ""
    events: int = 0
    log: int = 0
    lease: str = ""
    what: str = ""
    name: str = ""
    path: str = ""
    digest: str = ""


class Told(Struct, kw_only=True, omit_defaults=True):
    """An answer. ``error`` says in words why there is none."""

    op: str
    error: str = ""
    protocol: int = 0
    release: str = ""
    job: Job | None = None
    yes: bool = False


class Job(Struct, kw_only=True, omit_defaults=True):
    """A job as it is: ``events`` and ``log`` are bytes from the offset that was asked for; ``more`` is there already.

    ``alive`` and ``exit_code`` were read before them: a job that is over has nothing to add. ``saved`` has the folders,
    relative to the job's, of the checkpoints that the job saved whole. ``requested`` is ``stop`` or ``cancel`` as the
    job sees it.
    """

    pid: int = 0
    started: str = ""
    attempt: str = ""
    alive: bool = False
    exit_code: bytes | None = None
    result: bytes | None = None
    reason: str = ""
    requested: str = ""
    saved: list[str] = field(default_factory=list)
    events: bytes = b""
    log: bytes = b""
    events_size: int = 0
    log_size: int = 0
    more: bool = False


class Launch(Struct, kw_only=True, omit_defaults=True):
    """The first line that ``launch`` reads: ``spec`` is job.json as text, ``idle_sec`` how long a client may be silent.

    ``python`` is the trainer's (else the agent's own), ``env`` is added to its environment, and ``mark`` a file that is
    to hold the job's directory.
    """

    job: str
    spec: str
    python: str = ""
    env: dict[str, str] = field(default_factory=dict)
    mark: str = ""
    idle_sec: float = 120.0


class Launched(Struct, kw_only=True, omit_defaults=True):
    """What ``launch`` says: first the process, then, when stdin has ended, how many bytes the trainer took."""

    pid: int = 0
    started: str = ""
    sent: int = -1
    exit: int | None = None
    error: str = ""
    code: str = ""


class Started(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``process.json`` in a job's directory: the trainer's process (see runs/process.py) and its start.

    ``host`` is the name of the machine that it was started on, and ``view`` its boot and process namespace: where the
    directory is shared, only there can it be told whether the process runs. Both are empty for a pod.
    """

    pid: int
    started: str
    attempt: str = ""
    host: str = ""
    view: str = ""


def line(value: Struct) -> bytes:
    """One line to send."""
    return msgspec.json.encode(value) + b"\n"


def attempt_of(spec: bytes) -> str:
    """The start that a job.json belongs to; empty when it cannot be read."""
    try:
        value: Any = msgspec.json.decode(spec)
    except msgspec.MsgspecError:
        return ""
    return str(value.get("attempt", "")) if isinstance(value, dict) else ""
