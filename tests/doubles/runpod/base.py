"""What every part of the double shares: the clock, requests and answers, errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

PROBLEM = "application/problem+json"


class Clock:
    """The provider's time, in seconds since 1970. ``offset`` is how far it is ahead of this machine's."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset

    def now(self) -> float:
        return time.time() + self.offset


def iso(seconds: float) -> str:
    """A time as the API writes it: UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """The other way round."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@dataclass
class Request:
    """One request, read whole. ``who`` is ``account``, a pod's id, or empty when the key is nobody's."""

    method: str
    path: str
    query_text: str
    headers: Message[str, str]
    raw: bytes
    who: str = ""
    exempt: bool = False
    """A fault, or the edge, made the answer: do not check it."""
    then: Callable[[], None] | None = None
    """Runs when the answer has left, or was lost."""

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.query_text, keep_blank_values=True))

    @property
    def target(self) -> str:
        """``METHOD /path?query``: what faults match."""
        return f"{self.method} {self.path}" + (f"?{self.query_text}" if self.query_text else "")

    def json(self) -> dict[str, Any]:
        """The body as an object.

        Raises:
            Problem: 400 when it is not JSON, 422 when it is not an object.
        """
        try:
            body = json.loads(self.raw)
        except ValueError:
            raise Problem(400, "the request body is not valid JSON") from None
        if not isinstance(body, dict):
            raise Problem(422, "Request validation failed.", ["$: expected object"])
        return body


@dataclass
class Answer:
    """One answer. ``body`` is sent as JSON unless it is bytes; ``stream`` is sent piece by piece instead.

    ``effect`` is what the journal says was done.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    stream: Iterator[bytes] | None = None
    effect: str = ""

    def encoded(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Problem(Exception):
    """An error answer of the API."""

    def __init__(
        self, status: int, detail: str, errors: list[str] | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        body: dict[str, Any] = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
        if errors:
            body["errors"] = errors
        self.answer = Answer(status, body, headers or {}, PROBLEM)


class Limits:
    """The windows of the account's rate limit, all keys together: told in headers, and enforced when asked for."""

    WINDOWS = (("hour", 3000, 3600), ("day", 50000, 86400))

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.enforced, self.minute = False, 60
        self._lock = threading.Lock()
        self._calls: list[float] = []

    def clear(self) -> None:
        with self._lock:
            self._calls.clear()

    @property
    def windows(self) -> tuple[tuple[str, int, int], ...]:
        """Name, calls, seconds."""
        return (("minute", self.minute, 60), *self.WINDOWS)

    def count(self) -> tuple[dict[str, str], Problem | None]:
        """Count one call: the headers of its answer, and the refusal where it is one too many."""
        now, left, refusal = self.clock.now(), [], None
        least = 0 if self.enforced else 1  # what is not enforced is never said to be used up: a client would wait
        with self._lock:
            calls = [at for at in self._calls if at > now - 86400]
            for name, quota, width in self.windows:
                inside = [at for at in calls if at > now - width]
                reset = int(inside[0] + width - now) + 1 if inside else width
                if len(inside) >= quota and self.enforced:
                    refusal = Problem(429, f"rate limit exceeded for the {name} window", headers={})
                    refusal.answer.headers["Retry-After"] = str(reset)
                left.append(f'"{name}";r={max(least, quota - len(inside) - 1)};t={reset}')
            self._calls = calls if refusal else [*calls, now]
        policy = ", ".join(f'"{name}";q={quota};w={width}' for name, quota, width in self.windows)
        return {"RateLimit": ", ".join(left), "RateLimit-Policy": policy}, refusal
