"""The directory of a job, and the frame in which secrets and examples come on stdin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from stepctl.base.errors import StepctlError
from stepctl.base.files import write_atomic


@dataclass(frozen=True)
class JobDir:
    """Names in a job's directory."""

    path: Path

    @property
    def job(self) -> Path:
        return self.path / "job.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def exit_code(self) -> Path:
        return self.path / "exit_code"

    @property
    def has_ended(self) -> bool:
        """Whether the job's end is known here: by its result, or by its exit code."""
        return self.result.exists() or self.exit_code.exists()

    @property
    def out(self) -> Path:
        """Checkpoints that are saved but not committed yet."""
        return self.path / "out"

    @property
    def process(self) -> Path:
        """On a remote machine: the trainer's process, and which start it belongs to."""
        return self.path / "process.json"

    @property
    def bucket(self) -> Path:
        """On a remote machine: the bucket that the job commits to, when it may not write to the real one."""
        return self.path / "bucket"

    @property
    def init(self) -> Path:
        """The adapter that a new lineage starts from."""
        return self.path / "init"

    @property
    def reason(self) -> Path:
        """One word: why something other than a person asked for the end."""
        return self.control / "reason"

    def clear(self) -> None:
        """Remove what an attempt left that never got its examples; a request made from now on is for the next one."""
        asked = (self.control / "stop", self.control / "cancel", self.reason)
        for leftover in (self.exit_code, self.result, self.events, *asked):
            leftover.unlink(missing_ok=True)

    def request(self, what: str) -> None:
        """Ask the job to ``stop`` (save and end) or ``cancel`` (end without saving)."""
        self.control.mkdir(exist_ok=True)
        write_atomic(self.control / what, b"")

    def requested(self) -> str | None:
        """``cancel``, ``stop`` or None."""
        return next((what for what in ("cancel", "stop") if (self.control / what).exists()), None)


class Payload(Struct, frozen=True, kw_only=True):
    """What comes on stdin: tokens and the bytes of the trace and eval files, in the order of ``job.json``."""

    trace: tuple[bytes, ...]
    eval: tuple[bytes, ...] = ()
    hf_token: str | None = None


class _Header(Struct, frozen=True, kw_only=True):
    trace: tuple[int, ...]
    eval: tuple[int, ...]
    hf_token: str | None


class PayloadMissing(StepctlError):
    """stdin ended early: the client died before it had sent the trace."""

    code = "needs_trace"


def write_payload(stream: BinaryIO, payload: Payload) -> None:
    """One line of JSON (sizes and secrets), then the bytes."""
    header = _Header(
        trace=tuple(map(len, payload.trace)), eval=tuple(map(len, payload.eval)), hf_token=payload.hf_token
    )
    stream.write(msgspec.json.encode(header) + b"\n")
    for data in (*payload.trace, *payload.eval):
        stream.write(data)
    stream.flush()


def read_payload(stream: BinaryIO) -> Payload:
    """The inverse of :func:`write_payload`.

    Raises:
        PayloadMissing: the stream ended before everything had come.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise PayloadMissing("the examples did not arrive")
    header = msgspec.json.decode(line, type=_Header)

    def take(size: int) -> bytes:
        data = stream.read(size)
        if len(data) != size:
            raise PayloadMissing("the examples did not arrive whole")
        return data

    trace = tuple(take(size) for size in header.trace)
    return Payload(trace=trace, eval=tuple(take(size) for size in header.eval), hf_token=header.hf_token)
