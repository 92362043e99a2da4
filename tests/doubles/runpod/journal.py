"""Everything that happened, in order: calls of the API, and what became of pods."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Entry:
    """One call, or one event of a pod.

    kind: ``call`` or ``event``.
    n: its place in the journal, from 0.
    at: this machine's time, seconds since 1970.
    who: a call's key: ``account``, a pod's id, or empty (nobody's); of an event who made it happen: ``account``, the
        pod's id when its own key did, ``provider``, or ``sandbox``.
    method, path, query, body, status, effect: of a call. ``status`` is 0 while it is under way and if nothing was
        answered. ``effect`` is what was done, also when the answer was lost: ``created ID``, ``ended ID``.
    faults: numbers of the faults that the call met.
    violations: what the provider's document says against the request or the answer.
    event, pod, name, note: of an event: ``created``, ``started`` (its container), ``exited``, ``restarted``,
        ``stopped``, ``ended``, ...
    """

    kind: str
    n: int
    at: float
    who: str = ""
    method: str = ""
    path: str = ""
    query: str = ""
    body: dict[str, Any] | None = None
    status: int = 0
    effect: str = ""
    faults: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    event: str = ""
    pod: str = ""
    name: str = ""
    note: str = ""

    @property
    def target(self) -> str:
        """``METHOD /path?query``."""
        return f"{self.method} {self.path}" + (f"?{self.query}" if self.query else "")

    def line(self) -> str:
        """For a person."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.at))
        if self.kind == "event":
            note = f" ({self.note})" if self.note else ""
            return f"{clock}  pod {self.pod} {self.name}: {self.event} by {self.who}{note}"
        marks = [f"fault {number}" for number in self.faults] + [f"VIOLATION {text}" for text in self.violations]
        parts = [self.who or "nobody", self.target, str(self.status or "no answer"), self.effect, *marks]
        return f"{clock}  " + "  ".join(part for part in parts if part)


class Journal:
    """Kept in memory, and as lines of JSON in a file once an entry is whole."""

    def __init__(self, path: Path | None = None, echo: bool = False) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._file = path.open("a") if path else None
        self._echo = echo

    def begin(self, who: str, method: str, path: str, query: str, body: dict[str, Any] | None) -> Entry:
        """A call came in."""
        with self._lock:
            entry = Entry("call", len(self._entries), time.time(), who, method, path, query, body)
            self._entries.append(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """A call was answered, or will never be."""
        self._write(entry)

    def event(self, event: str, pod: str, name: str, who: str, note: str = "") -> None:
        """Something happened to a pod."""
        with self._lock:
            entry = Entry("event", len(self._entries), time.time(), who, event=event, pod=pod, name=name, note=note)
            self._entries.append(entry)
        self._write(entry)

    def entries(self, since: int = 0) -> list[dict[str, Any]]:
        with self._lock:
            return [asdict(entry) for entry in self._entries[since:]]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def _write(self, entry: Entry) -> None:
        with self._lock:
            if self._file:
                self._file.write(json.dumps(asdict(entry)) + "\n")
                self._file.flush()
            if self._echo:
                print(entry.line(), file=sys.stderr, flush=True)
