"""A provider's API that answers as it is told, for the scripts that run in a pod."""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

POD = "pod1a2b3c"
KEY = "rpa_TESTKEYOFTHISPOD0123456789"


class Seen(NamedTuple):
    """One request: ``what`` is GET, DELETE, terminate or stop."""

    what: str
    agent: str
    key: str


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed while it was answered."""


class StubApi:
    """``age`` is the pod's age in seconds when its container starts, by the provider's clock.

    ``answers`` gives the statuses of each kind of request: used up from the front, and the last one stays.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.start, self.age, self.elapsed = datetime(2026, 11, 30, 23, 59, 50, tzinfo=UTC), 40.0, 0.0
        self.date: str | None = None
        self.created: str | None = None
        self.answers: dict[str, list[int]] = {"GET": [200], "terminate": [204], "DELETE": [204], "stop": [200]}
        self.seen: list[Seen] = []
        self.leaks: list[str] = []
        self.location: str | None = None
        self.kind = "application/json"
        self.hangs = False
        """Whether requests are taken and never answered."""
        self.watched: Callable[[], int | None] = lambda: None
        """The process group whose command lines and environments must not hold the key."""
        self._tls, self._port = tls, 0
        self.open()

    def open(self) -> None:
        """Listen, on the same port as before."""
        self._server = _Server(("127.0.0.1", self._port), _handler(self))
        self._port = self._server.server_port
        if self._tls:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()

    def close(self) -> None:
        """From now on connections are refused."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The base of the API."""
        return f"http{'s' if self._tls else ''}://{'localhost' if self._tls else '127.0.0.1'}:{self._port}/v2"

    def count(self, what: str) -> int:
        """How often it was asked."""
        return sum(one.what == what for one in self.seen)

    @property
    def endings(self) -> list[str]:
        """The requests that end a pod, in order."""
        return [one.what for one in self.seen if one.what != "GET"]

    def answer(self, what: str) -> int:
        """The next status for this kind."""
        left = self.answers.get(what, [400])
        return left.pop(0) if len(left) > 1 else left[0]

    def created_at(self) -> str:
        """``createdAt`` of the pod."""
        if self.created is not None:
            return self.created
        return (self.start - timedelta(seconds=self.age)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def look_for_leaks(self) -> None:
        """Search every process of the watched group but its first for the key."""
        group = self.watched()
        for folder in Path("/proc").iterdir() if group else ():
            try:
                pid = int(folder.name)
                if os.getpgid(pid) != group or pid == group:
                    continue
                name = (folder / "comm").read_text().strip()
                forked = (folder / "environ").read_bytes() == Path(f"/proc/{group}/environ").read_bytes()
                for where in ("cmdline",) if forked else ("cmdline", "environ"):
                    if KEY.encode() in (folder / where).read_bytes():
                        self.leaks.append(f"{name} {where}")
            except (ValueError, OSError):
                continue


def _handler(api: StubApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            what = self.command
            known = self.path == f"/v2/pods/{POD}"
            if what == "POST":
                known, what = self.path == f"/v2/pods/{POD}/action", str(json.loads(body)["action"])
            key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            api.seen.append(Seen(what, self.headers.get("User-Agent") or "", key))
            if api.hangs:
                api.seen.pop()
                time.sleep(60)
                return
            api.look_for_leaks()
            status = api.answer(what) if known else 404
            if key != KEY:
                status = 401
            self._send(status, {"id": POD, "env": {"A": '"createdAt":"2020-01-01T00:00:00Z"'}})

        def _send(self, status: int, pod: dict[str, Any]) -> None:
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", api.location or "/v2/elsewhere")
            text = b""
            if status == 200:
                text = json.dumps({**pod, "createdAt": api.created_at(), "status": "RUNNING"}).encode()
            elif status != 204:
                text = json.dumps({"title": "no", "status": status}).encode()
            self.send_header("Content-Type", api.kind)
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _answer

        def date_time_string(self, timestamp: float | None = None) -> str:
            return (
                format_datetime(api.start + timedelta(seconds=api.elapsed), usegmt=True)
                if api.date is None
                else api.date
            )

        def log_message(self, *args: object) -> None:
            """Nothing is printed."""

    return Handler
