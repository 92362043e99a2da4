"""What goes wrong on demand: with single calls (``Fault``), or with the pod that a call makes (``Quirks``).

"Before" is when the whole request was read and nothing was done; "after" is when it was done and nothing was answered.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .base import Answer, Problem, Request

When = Literal["before", "after"]
NO_STOCK = (
    "There are no longer any instances available with the requested specifications. Please refresh and try again."
)
ALWAYS = 1 << 30


@dataclass(frozen=True)
class Quirks:
    """How a pod behaves. Seconds are of the sandbox's clock, which ``Sandbox.advance`` moves.

    boot: after create until the container starts; until then ``runtime`` and ``ssh.direct`` are null.
    boot_status: ``status`` meanwhile; the live API says RUNNING, its document PROVISIONING and STARTING.
    address: after the container's start until the pod shows its address.
    sshd: after the container's start until port 22 is let in; refused before.
    restart: after the start command exited until the container runs again (15 to 30 s at the provider).
    end: after a delete was answered until the pod is gone (about 2 s at the provider).
    lingers: so many GETs show a deleted pod as TERMINATED before they answer 404.
    unlisted: so many lists do not show the pod although it is there.
    unfound: so many GETs of the pod answer 404 although it is there.
    twin: the create makes a second pod of the same name.
    price: USD per hour that the pod shows, whatever the catalog says; also a text, or ``missing``.
    loop: the start command is replaced by one that fails at once.
    wrong_host_key: sshd shows another host key than the container's own.
    vanish: seconds after create the pod is gone, without anybody having asked.
    exit: seconds after create its status is ``exit_status``.
    undying: so many deletes and terminates answer 204 and do nothing; -1 is all of them.
    latency: seconds that SSH traffic takes, each way.
    disk_mb: size of the container's disk; 0 is no bound.
    ssh: ``host:port`` that the pod shows, for pods without processes.
    ssh_calls: what comes over SSH is told and can be met by faults, as calls ``SSH WHAT``: ``connect``; commands
        (``setup``, ``attach``, ``unpack``, ``pack``, ``launch``, any other is ``shell``), the second part of two of
        them (``wheel``, ``payload``), ``ask find`` and what else an agent is asked, and ``over``, its answer that a job
        has ended. "After" is when the command's (first) answer is about to go out. Pods need to see this Python.
    """

    boot: float = 0.0
    boot_status: str = "RUNNING"
    address: float = 0.0
    sshd: float = 0.0
    restart: float = 0.3
    end: float = 0.0
    lingers: int = 0
    unlisted: int = 0
    unfound: int = 0
    twin: bool = False
    price: float | str | None = None
    loop: bool = False
    wrong_host_key: bool = False
    vanish: float | None = None
    exit: float | None = None
    exit_status: str = "EXITED"
    undying: int = 0
    latency: float = 0.0
    disk_mb: int = 0
    ssh: str = ""
    ssh_calls: bool = False


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong with calls. Each fault counts the calls that match it.

    match: pattern searched for in ``METHOD /v2/path?query``.
    who: only calls with the account's key (``account``), with any pod's (``pod``), or with the key of the pod of this
        id or name; empty is anybody.
    body: pattern searched for in the request's body.
    since: pattern; only calls count that come after one whose ``METHOD /v2/path?query`` matches it.
    nth, times: the calls that meet it: from the nth that matches (1 is the first) so many; ``times=0`` is all.
    when: before or after the effect; for status, drop, delay and hold.
    status, detail, retry_after: an error instead of the real answer.
    text: with status, this body, which need not be JSON.
    drop: close the connection without an answer.
    delay: seconds to wait (real ones), then go on.
    hold: wait until ``Sandbox.release()``, then go on.
    pod: changes of the quirks of the pod that this create makes.
    """

    match: str = "."
    who: str = ""
    body: str = ""
    since: str = ""
    nth: int = 1
    times: int = 1
    when: When = "before"
    status: int = 0
    detail: str = ""
    retry_after: int | None = None
    text: str | None = None
    drop: bool = False
    delay: float = 0.0
    hold: bool = False
    pod: dict[str, Any] = field(default_factory=dict)

    def answer(self) -> Answer:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.text is not None:
            return Answer(self.status, self.text.encode(), headers, "text/html")
        return Problem(self.status, self.detail or f"a fault that was asked for: {self.status}", headers=headers).answer


def no_stock(*gpus: str, status: int = 400, times: int = 0) -> Fault:
    """Creates with one of these GPU types (all, without any) find no machine; the live API also says so with a 500."""
    body = f'"({"|".join(re.escape(gpu) for gpu in gpus)})"' if gpus else ""
    detail = NO_STOCK if status == 400 else f"create pod: {NO_STOCK}"
    return Fault(r"^POST /v2/pods$", body=body, times=times, status=status, detail=detail)


class Dropped(Exception):
    """Close the connection; answer nothing."""


@dataclass(eq=False)
class Held:
    """A call that waits because of a fault. ``gone`` is set when it was released; ``lost``: it must not go on."""

    target: str
    call: int
    when: str
    fault: Fault
    gone: threading.Event = field(default_factory=threading.Event, repr=False)
    lost: bool = False


class Faults:
    """The faults in force, how often each was matched, and the calls that are held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[int, tuple[Fault, int]] = {}
        self._waiting: set[int] = set()
        self._next = 1
        self._held: list[Held] = []

    def add(self, fault: dict[str, Any]) -> int:
        """Put a fault in force: its number."""
        made = Fault(**fault)
        re.compile(made.match), re.compile(made.body), re.compile(made.since)
        Quirks(**made.pod)
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._faults[number] = (made, 0)
            if made.since:
                self._waiting.add(number)
        return number

    def clear(self, number: int | None = None) -> None:
        """Take one fault, or all, out of force; calls that are held go on."""
        with self._lock:
            numbers = list(self._faults) if number is None else [number]
            faults = [self._faults.pop(known)[0] for known in numbers if known in self._faults]
        self._let_go([fault for fault in faults if fault.hold], lost=False)

    def listed(self) -> list[dict[str, Any]]:
        """The faults in force, and how often each was matched."""
        with self._lock:
            faults = list(self._faults.items())
        return [{"number": number, "matched": matched, **asdict(fault)} for number, (fault, matched) in faults]

    def meet(self, request: Request, names: set[str]) -> dict[int, Fault]:
        """The faults that this call meets, counted. ``names``: what its caller is called in ``Fault.who``."""
        found = {}
        body = request.raw.decode(errors="replace")
        with self._lock:
            for number, (fault, matched) in self._faults.items():
                if number in self._waiting:
                    if re.search(fault.since, request.target):
                        self._waiting.discard(number)
                    continue
                named = not fault.who or fault.who in names
                if named and re.search(fault.match, request.target) and re.search(fault.body, body):
                    self._faults[number] = (fault, matched + 1)
                    if fault.nth <= matched + 1 < fault.nth + (fault.times or ALWAYS):
                        found[number] = fault
        return found

    def act(self, fault: Fault, when: When, request: Request, call: int) -> Answer | None:
        """Do what the fault does at this moment; an answer is given instead of the real one.

        Raises:
            Dropped: the connection is to be closed.
        """
        if fault.when != when:
            return None
        time.sleep(fault.delay)
        if fault.hold:
            self._hold(Held(request.target, call, when, fault))
        if fault.drop:
            raise Dropped
        return fault.answer() if fault.status else None

    def held(self) -> list[dict[str, Any]]:
        """The calls that wait now."""
        with self._lock:
            return [{"target": held.target, "call": held.call, "when": held.when} for held in self._held]

    def release(self, lost: bool = False) -> int:
        """Let the calls go on that are held; ``lost``: as if they had never come, or their answer had been lost."""
        return self._let_go(None, lost)

    def _let_go(self, faults: list[Fault] | None, lost: bool) -> int:
        with self._lock:
            waiting = [held for held in self._held if faults is None or any(held.fault is one for one in faults)]
            self._held = [held for held in self._held if held not in waiting]
        for held in waiting:
            held.lost = lost
            held.gone.set()
        return len(waiting)

    def _hold(self, held: Held) -> None:
        with self._lock:
            self._held.append(held)
        held.gone.wait()
        if held.lost:
            raise Dropped
