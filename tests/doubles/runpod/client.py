"""Start the sandbox from a test, let things go wrong in it, and look behind its API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .faults import Fault
from .journal import Entry
from .screen import variables

ROOT = Path(__file__).resolve().parents[3]
KEY = "rpa_sandbox_account_key"


class Sandbox:
    """The emulated Runpod, running between ``with`` and its end; leaving it checks that nobody broke the contract.

    url: the API's address, ``http://HOST:PORT/v2``, the same for pods and their client.
    key: the account's key.
    control: the address of the verbs that this class wraps.
    """

    key = KEY

    def __init__(self, root: Path, *, pods: str = "records", show: tuple[Path, ...] = (), python: bool = False) -> None:
        """``pods``: ``records`` (no processes) or ``netns`` (real sshd pods; root on Linux). ``root`` keeps volumes and
        the journal. ``show``: host folders that pods see, read-only; ``python``: those of this Python and its packages
        too."""
        self._root, self._level = root, pods
        self._show = [f"--show={path}" for path in show] + ["--show-python"] * python
        self._process: subprocess.Popen[str] | None = None
        self.url = self.control = ""
        self._told = 0
        self._frozen: dict[str, int] = {}

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.stop()

    def start(self) -> None:
        """Start it; the address is new."""
        command = [sys.executable, "-m", "tests.doubles.runpod", f"--root={self._root}", f"--pods={self._level}"]
        command += ["--while-stdin", "--json", *self._show]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, "the sandbox did not start: its reason is on stderr"
        said = json.loads(line)
        self.url, self.control = said["url"], said["control"]

    def stop(self) -> None:
        """End it, and every pod."""
        if self._process:
            try:
                self._process.communicate(timeout=30)  # its stdin is closed: it ends
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            self._process = None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self._process
        self._process.kill()
        self._process.communicate()
        self._process = None

    def env(self) -> dict[str, str]:
        """What a client process needs in its environment to use the sandbox as its target ``sandbox``."""
        return variables({"url": self.url, "control": self.control}, self.key)

    def reset(self) -> None:
        """As at the start: no pods, faults, secrets, quirks; an empty journal. The contract is checked first."""
        try:
            self.check()
        finally:
            self.ask("reset")
            self._told = 0
            self._frozen.clear()

    # What goes wrong.

    def fault(self, *faults: Fault) -> list[int]:
        """Put these in force besides those before: their numbers."""
        return [self.ask("fault", **asdict(fault)) for fault in faults]

    def clear(self) -> None:
        """Take all faults out of force; calls that are held go on."""
        self.ask("clear")

    def quirks(self, pod: str | None = None, **changes: Any) -> None:
        """Change how pods made from now on behave, or one pod (by id or name); see ``Quirks``."""
        self.ask("quirks", pod=pod, **changes)

    def settings(self, *, edge: bool = False, page: int = 0, limits: bool = False, minute: int = 60) -> None:
        """``edge``: generic user agents get 403; ``page``: pods on a page of a list; ``limits``: 429 for real;
        ``minute``: calls that are said to be allowed in one."""
        self.ask("settings", edge=edge, page=page, limits=limits, minute=minute)

    def catalog(self, gpu: str, **values: Any) -> None:
        """Change what the catalog says of a GPU type; see ``Gpu``."""
        self.ask("catalog", gpu=gpu, **values)

    def add_volume(self, id: str, center: str) -> None:
        self.ask("volume", id=id, center=center)

    def advance(self, seconds: float) -> float:
        """Put the provider's clock forward or back, and let happen what is due then: its time now."""
        now: float = self.ask("advance", seconds=seconds)
        return now

    def down(self, seconds: float = 0.0) -> None:
        """The API refuses connections, for so long or until ``up``."""
        self.ask("down", seconds=seconds)

    def up(self) -> None:
        self.ask("up")

    def end(self, pod: str, note: str = "") -> None:
        """The pod vanishes."""
        self.ask("end", pod=pod, note=note)

    def set_status(self, pod: str, status: str = "EXITED") -> None:
        """The pod's container is gone, and its status is EXITED or ERROR."""
        self.ask("status", pod=pod, status=status)

    # Holding a call, to kill a client at exactly that point.

    def held(self) -> list[dict[str, Any]]:
        """The calls that wait: ``target``, ``call`` (their place in the journal), ``when``."""
        held: list[dict[str, Any]] = self.ask("held")
        return held

    def wait_held(self, count: int = 1, seconds: float = 30, *, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until so many calls are held; False when ``unless`` came first (such as: the client has ended)."""
        until = time.monotonic() + seconds
        while len(self.held()) < count:
            if unless():
                return len(self.held()) >= count
            assert time.monotonic() < until, f"no {count} calls are held after {seconds} s:\n{self.told()}"
            time.sleep(0.01)
        return True

    def release(self, *, lost: bool = False) -> None:
        """Let the calls go on that are held. ``lost``: one held before its effect has none, one held after answers
        nothing."""
        self.ask("release", lost=lost)

    # Real pods.

    def cut(self, pod: str, what: str = "all") -> None:
        """Drop packets silently: of the ``client`` (SSH), of the ``api``, or ``all``."""
        self.ask("cut", pod=pod, what=what)

    def freeze(self, pod: str, what: str = "client") -> None:
        """Connections stay, and nothing answers on them: to the ``client`` the pod's sshd, to the pod the ``api``."""
        if what == "api":
            self._frozen[pod] = self.fault(Fault(who=pod, times=0, hold=True))[0]
        else:
            assert self.ask("freeze", pod=pod), "there is no sshd"

    def heal(self, pod: str) -> None:
        """Undo ``cut`` and ``freeze``."""
        if pod in self._frozen:
            self.ask("clear", number=self._frozen.pop(pod))
        self.ask("heal", pod=pod)

    def processes(self, pod: str) -> list[dict[str, Any]]:
        """A pod's processes: ``pid`` as this machine counts, ``inner`` as the pod does, and their ``command``."""
        found: list[dict[str, Any]] = self.ask("processes", pod=pod)
        return found

    def signal(self, pod: str, match: str, name: str = "KILL") -> int:
        """Send a signal to the processes whose command matches: how many there were."""
        count: int = self.ask("signal", pod=pod, match=match, name=name)
        return count

    def execute(self, pod: str, *command: str, given: str = "") -> str:
        """Run a command in a pod, with its container's environment: what it printed.

        Raises:
            AssertionError: it failed.
        """
        done = self.ask("execute", pod=pod, command=command, given=given)
        assert done["code"] == 0, done
        out: str = done["out"]
        return out

    def written(self, pod: str) -> list[str]:
        """The files that a pod wrote to its disk."""
        paths: list[str] = self.ask("written", pod=pod)
        return paths

    def search(self, text: str) -> list[str]:
        """Where a text is: ``POD:/path`` on disks, ``POD:log`` in logs, ``volume:/path``."""
        places: list[str] = self.ask("search", text=text)
        return places

    def expose(self, url: str) -> str:
        """Make a server on 127.0.0.1 (the emulated Hub) reachable for pods too: its URL for all."""
        exposed: str = self.ask("expose", port=int(url.rsplit(":", 1)[1].split("/")[0]))
        return exposed

    # What happened.

    def journal(self, since: int = 0) -> list[Entry]:
        """Calls and events, in order."""
        return [Entry(**entry) for entry in self.ask("journal", since=since)]

    def calls(self, match: str = "", who: str = "") -> list[Entry]:
        """The calls whose ``METHOD /v2/path?query`` matches, of a key."""
        found = [e for e in self.journal() if e.kind == "call" and re.search(match, e.target)]
        return [entry for entry in found if not who or entry.who == who]

    def events(self, event: str = "", pod: str = "") -> list[Entry]:
        """The events of pods (by id or name)."""
        found = [e for e in self.journal() if e.kind == "event" and event in ("", e.event)]
        return [entry for entry in found if pod in ("", entry.pod, entry.name)]

    def told(self) -> str:
        """The journal for a person: for the message of an assertion."""
        return "\n".join(entry.line() for entry in self.journal())

    def wait_event(self, event: str, pod: str = "", seconds: float = 30, count: int = 1) -> Entry:
        """Wait until an event happened so often: the last of them."""
        until = time.monotonic() + seconds
        while len(found := self.events(event, pod)) < count:
            assert time.monotonic() < until, f"no {event} after {seconds} s:\n{self.told()}"
            time.sleep(0.02)
        return found[count - 1]

    def pods(self) -> list[dict[str, Any]]:
        """The pods that there are, as the API shows them, with ``key``, ``starts`` and ``quirks``."""
        pods: list[dict[str, Any]] = self.ask("pods")
        return pods

    def gone(self) -> list[dict[str, Any]]:
        """The pods that ended; ``endedBy`` is who ended them."""
        pods: list[dict[str, Any]] = self.ask("pods", ended=True)
        return pods

    def logs(self, pod: str, source: str = "container") -> list[str]:
        """A pod's log, also when it is gone."""
        lines: list[str] = self.ask("logs", pod=pod, source=source)
        return lines

    def add_log(self, pod: str, line: str, source: str = "container") -> None:
        self.ask("log", pod=pod, line=line, source=source)

    def secrets(self) -> dict[str, str]:
        """The account's secrets with their values."""
        values: dict[str, str] = self.ask("secrets")
        return values

    # The provider's document.

    def violations(self) -> list[str]:
        """What requests and answers had, since the last look, that the provider's document does not allow, and pods
        that the sandbox could not run. Faults are not counted."""
        entries = self.journal()
        broken = [f"{e.target}: {text}" for e in entries for text in e.violations]
        broken += [entry.line() for entry in entries if entry.event == "failed"]
        fresh, self._told = broken[self._told :], len(broken)
        return fresh

    def check(self) -> None:
        """Fail when the contract was broken since the last look."""
        broken = self.violations()
        assert not broken, "\n".join(broken)

    def ask(self, verb: str, **args: Any) -> Any:
        """Ask something of the sandbox itself."""
        request = urllib.request.Request(f"{self.control}/{verb}", json.dumps(args).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{verb}: {json.load(error)['error']}") from None
