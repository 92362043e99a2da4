"""The logs of a pod: what its container printed (``container``), and what the host says of it (``system``)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .base import Problem, Request, iso, seconds_of

KEPT = 20000


@dataclass(frozen=True)
class Line:
    """One line; ``at`` in seconds since 1970 of the provider's clock."""

    number: int
    at: float
    source: str
    text: str

    def event(self) -> bytes:
        data = json.dumps({"ts": iso(self.at), "source": self.source, "line": self.text})
        return f"id: {iso(self.at)}/{self.number:012d}\ndata: {data}\n\n".encode()


class PodLog:
    """Lines in the order they came. Reading waits for more until the pod is gone."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._came = threading.Condition()
        self._lines: list[Line] = []
        self._closed = False

    def add(self, source: str, text: str) -> None:
        with self._came:
            self._lines.append(Line(len(self._lines), self._now(), source, text))
            self._came.notify_all()

    def close(self) -> None:
        """The pod is gone: readers come to an end."""
        with self._came:
            self._closed = True
            self._came.notify_all()

    def texts(self, source: str = "container") -> list[str]:
        with self._came:
            return [line.text for line in self._lines if line.source == source]

    def stream(self, request: Request) -> Iterator[bytes]:
        """The lines that the request asks for, as server-sent events, then those that come."""
        query = request.query
        source = query.get("source", "")
        if source not in ("", "container", "system"):
            raise Problem(422, "Request validation failed.", ["query.source: must be container or system"])
        tail = query.get("tail", "100")
        if not tail.isdigit() or int(tail) > 5000:
            raise Problem(422, "Request validation failed.", ["query.tail: must be between 0 and 5000"])
        with self._came:
            start = self._first(request, source, int(tail))
        return self._follow(start, source)

    def _first(self, request: Request, source: str, tail: int) -> int:
        cursor = request.headers.get("Last-Event-ID")
        since = request.query.get("since")
        try:
            if cursor and "/" in cursor:
                return int(cursor.split("/")[1]) + 1
            if cursor or since:
                from_ = seconds_of(cursor or since or "")
                return next((line.number for line in self._lines if line.at >= from_), len(self._lines))
        except ValueError:
            raise Problem(422, "Request validation failed.", ["since: expected an RFC 3339 time"]) from None
        wanted = [line.number for line in self._lines if not source or line.source == source]
        return ([*wanted, len(self._lines)][-tail - 1 :] if tail else [len(self._lines)])[0]

    def _follow(self, at: int, source: str) -> Iterator[bytes]:
        while True:
            with self._came:
                if at >= len(self._lines) and not self._closed:
                    self._came.wait(1.0)
                lines, closed = self._lines[at:], self._closed
            at += len(lines)
            for line in lines:
                if not source or line.source == source:
                    yield line.event()
            if closed and not lines:
                return
            if not lines:
                yield b": keep-alive\n\n"
