"""What goes wrong on demand, and the log of what was asked.

A fault is met by requests whose ``METHOD /path?query`` matches, and each fault counts its own matches. "Before" is when
the whole request was read and nothing was done; "after" is when the effect is on disk and nothing was answered.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from .state import Answer, Request

When = Literal["before", "after"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    match: pattern searched for in ``METHOD /path?query``.
    nth: only the nth request that matches, from 1; 0 is every one.
    status, body, headers: this answer instead of the real one (429 with ``retry_after``).
    delay: seconds to wait, before the effect or before the answer.
    drop: close the connection without an answer.
    half: promise the whole answer, send half of it, close the connection.
    hang: wait until ``Hub.release()``, then go on as if nothing had happened.
    kill: SIGKILL to this process group, a number or a file that holds one; then the connection is closed.
    refuse: operations of a batch on paths that match this pattern fail, the others are applied.
    cut: the server applies only so many operations of a batch, then drops the connection.
    when: before or after the effect; for status, delay, drop, hang and kill.
    """

    match: str
    nth: int = 0
    when: When = "before"
    status: int = 0
    body: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    retry_after: float | None = None
    delay: float = 0.0
    drop: bool = False
    half: bool = False
    hang: bool = False
    kill: int | str | None = None
    refuse: str = ""
    cut: int | None = None

    def answer(self) -> Answer:
        message = f"a fault that the test asked for: {self.status}"
        headers = {"X-Error-Message": message, **self.headers}
        if self.retry_after is not None:
            headers["Retry-After"] = f"{self.retry_after:g}"
        return Answer({"error": message} if self.body is None else self.body, self.status, headers)


@dataclass
class Logged:
    """One request. Bytes are those of bodies; ``status`` is 0 while it is under way and if nothing was answered."""

    number: int
    method: str
    path: str
    query: str
    user: str = ""
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    faults: list[int] = field(default_factory=list)  # places in the list of faults


class Dropped(Exception):
    """Close the connection; answer nothing."""


class Faults:
    """The faults in force and how often each was matched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._matches: list[int] = []
        self._go = threading.Event()
        self.held = 0

    def set(self, faults: list[dict[str, Any]]) -> None:
        """Put these in force instead of those before; requests that hang go on."""
        with self._lock:
            self._faults = [Fault(**fault) for fault in faults]
            self._matches = [0] * len(faults)
        self.release()

    def release(self) -> None:
        """Let the requests go on that hang now; later ones hang again."""
        with self._lock:
            self._go.set()
            self._go = threading.Event()

    def hit(self, text: str, entry: Logged) -> list[Fault]:
        """The faults that this request meets, counted."""
        found = []
        with self._lock:
            for place, fault in enumerate(self._faults):
                if re.search(fault.match, text):
                    self._matches[place] += 1
                    if fault.nth in (0, self._matches[place]):
                        entry.faults.append(place)
                        found.append(fault)
        return found

    def prepare(self, fault: Fault, request: Request) -> None:
        """What a fault changes in the request itself."""
        request.refuse = fault.refuse or request.refuse
        request.cut = fault.cut if fault.cut is not None else request.cut

    def act(self, fault: Fault, when: When) -> Answer | None:
        """Do what the fault does at this moment; an answer is given instead of the real one."""
        if fault.when != when:
            return None
        time.sleep(fault.delay)
        if fault.hang:
            self._hold()
        if fault.kill is not None:
            _kill(fault.kill)
            raise Dropped
        if fault.drop:
            raise Dropped
        return fault.answer() if fault.status else None

    def _hold(self) -> None:
        with self._lock:
            go = self._go
            self.held += 1
        go.wait()
        with self._lock:
            self.held -= 1


def _kill(target: int | str) -> None:
    group = target if isinstance(target, int) else int(Path(target).read_text())
    if group in (os.getpgid(0), os.getpgid(os.getppid())):
        raise ValueError("that is the tests' own process group: start the client with start_new_session=True")
    os.killpg(group, signal.SIGKILL)


class Log:
    """Every request since the server started or the log was cleared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[Logged] = []

    def begin(self, method: str, path: str, query: str, size: int) -> Logged:
        with self._lock:
            entry = Logged(len(self._entries), method, path, query, bytes_in=size)
            self._entries.append(entry)
        return entry

    def entries(self) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(entry) for entry in self._entries]

    def clear(self) -> None:
        with self._lock:
            self._entries = []
