"""What every part of the double shares: requests and answers, who may do what, the clock, files written whole."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple


class Who(NamedTuple):
    """The user behind a token and the token's role, ``read`` or ``write``."""

    user: str
    role: str


@dataclass
class Request:
    """One HTTP request; ``base`` is the server's own address as the client wrote it."""

    method: str
    path: str
    query: dict[str, str]
    headers: Message[str, str]
    body: bytes
    base: str
    who: Who | None = None
    refuse: str = ""  # set by a fault: operations of a batch on such paths fail
    cut: int | None = None  # set by a fault: only so many operations of a batch are applied

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def range(self, total: int) -> tuple[int, int] | None:
        """The first byte wanted and the one behind the last, or None when the whole is."""
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if not found:
            return None
        first, last = found.groups()
        if not first:
            return max(0, total - int(last)), total
        return int(first), min(int(last) + 1 if last else total, total)


@dataclass
class Answer:
    """One HTTP answer; a body that is not bytes is sent as JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


Route = tuple[str, str, Callable[..., Answer]]


class HubError(Exception):
    """An answer that is an error; ``code`` is what the client turns into its own exceptions."""

    def __init__(self, status: int, message: str, code: str = "", **more: Any) -> None:
        super().__init__(message)
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self.answer = Answer({"error": message, **more}, status, headers)


def ranged(request: Request, data: bytes, headers: dict[str, str]) -> Answer:
    """A file's bytes, or the range of them that was asked for."""
    headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", **headers}
    wanted = request.range(len(data))
    if wanted is None:
        return Answer(data, 200, headers)
    first, end = wanted
    if first >= end:
        raise HubError(416, "Range Not Satisfiable")
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(data)}"
    return Answer(data[first:end], 206, headers)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a killed server leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{time.monotonic_ns()}")
    part.write_bytes(data)
    part.replace(path)


def iso(ms: int) -> str:
    """Milliseconds since 1970 as the Hub writes times."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Clock:
    """The time of uploads, in milliseconds. It never stands still or goes back unless a test sets it."""

    def __init__(self) -> None:
        self.last = 0
        self.step: int | None = None

    def tick(self) -> int:
        if self.step is None:
            self.last = max(int(time.time() * 1000), self.last + 1)
        else:
            self.last += self.step
        return self.last

    def set(self, at: int | None, step: int) -> None:
        """From now on every upload is ``step`` after the one before, the first at ``at``; the real time with None."""
        if at is None:
            self.last, self.step = 0, None
        else:
            self.last, self.step = at - step, step
