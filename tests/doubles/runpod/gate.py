"""What clients do over SSH, as calls: journalled like those of the API, and met by faults (``^SSH launch$``).

In a pod with the quirk ``ssh_calls`` root's login shell is ``gate_shell.py``: it tells of each command before it starts
and before its answer goes out, of each question to the agent likewise, and waits until it may go on. Connections come
in over a relay, which tells of them before it passes them on.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from email.message import Message
from pathlib import Path
from typing import Any

from .base import Request
from .faults import Dropped, Fault, Faults, When
from .journal import Entry, Journal
from .pods import Pod

SHELL = Path(__file__).resolve().parent / "gate_shell.py"
PLACE = "gate"
"""The shell's place in a pod's root."""


class Gate:
    """Listens where pods reach it."""

    def __init__(self, host: str, faults: Faults, journal: Journal) -> None:
        self._faults, self._journal = faults, journal
        self._lock = threading.Lock()
        self._calls: dict[str, tuple[Request, Entry, list[Fault]]] = {}
        self._server = _Server((host, 0), _handler(self))
        self.address: tuple[str, int] = (host, self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def install(self, pod: Pod, root: Path) -> None:
        """Make it the shell of root in a pod whose own files are below ``root``."""
        host, port = self.address
        head = f"#!{sys.executable} -IS\nGATE, POD = ({host!r}, {port}), {pod.id!r}\n"
        shell = root / PLACE
        shell.write_text(head + SHELL.read_text())
        shell.chmod(0o755)
        lines = Path("/etc/passwd").read_text().splitlines()
        changed = [line.rpartition(":")[0] + f":/{PLACE}" if line.startswith("root:") else line for line in lines]
        (root / "etc").mkdir(exist_ok=True)
        (root / "etc/passwd").write_text("\n".join(changed) + "\n")

    def connect(self, pod: Pod) -> bool:
        """A connection has come for a pod: whether it may go on. Waits while it is held."""
        call = os.urandom(8).hex()
        return self.tell(pod.id, call, "connect", "before") and self.tell(pod.id, call, "connect", "after")

    def tell(self, pod: str, call: str, what: str, when: When) -> bool:
        """Something is about to happen (``before``), or has happened and is about to be answered: may it go on?"""
        if when == "before":
            request = Request("SSH", what, "", Message(), b"", who="account")
            entry = self._journal.begin("account", "SSH", what, "", None)
            entry.pod = pod
            faults = self._faults.meet(request, {"account"})
            entry.faults = list(faults)
            with self._lock:
                self._calls[call] = request, entry, list(faults.values())
        with self._lock:
            known = self._calls.get(call)
        if known is None:
            return True
        request, entry, met = known
        try:
            for fault in met:
                self._faults.act(fault, when, request, entry.n)
        except Dropped:
            self._close(call, entry)
            return False
        if when == "after":
            entry.status = 200
            self._close(call, entry)
        return True

    def _close(self, call: str, entry: Entry) -> None:
        with self._lock:
            self._calls.pop(call, None)
        self._journal.end(entry)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def _handler(gate: Gate) -> Any:
    class Asked(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line:
                go = gate.tell(**json.loads(line))
                try:
                    self.wfile.write(b"go\n" if go else b"lost\n")
                except OSError:
                    return  # the pod is gone

    return Asked
