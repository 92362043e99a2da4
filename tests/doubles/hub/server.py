"""The double's HTTP server: one request in, its faults, the handler that its path names, one answer out.

Guesses about the real service (marked here):
- a token that the Hub does not know is 401 everywhere, also where no token is needed.
"""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .buckets import Buckets
from .cas import Cas
from .faults import Dropped, Fault, Faults, Log, Logged
from .repos import Repos
from .state import Answer, HubError, Request, Route, Who

CONTROL = "/_hub/"


@dataclass(frozen=True)
class Options:
    root: Path
    port: int
    tokens: dict[str, Who]


class Double:
    """Everything behind the HTTP server."""

    def __init__(self, options: Options) -> None:
        self.tokens = options.tokens
        self.cas = Cas(options.root / "cas")
        self.buckets = Buckets(options.root / "buckets", self.cas)
        self.repos = Repos(options.root / "models")
        self.faults, self.log = Faults(), Log()
        routes: list[Route] = [("GET", "/api/whoami-v2", self._whoami)]
        routes += self.buckets.routes() + self.cas.routes() + self.repos.routes()
        self._routes = [(re.compile(method), re.compile(path), handler) for method, path, handler in routes]

    def answer(self, request: Request) -> Answer:
        """Do what the request asks for."""
        for method, path, handler in self._routes:
            found = path.fullmatch(request.path)
            if found and method.fullmatch(request.method):
                if not request.path.startswith(f"/{self.cas.name}/"):
                    request.who = self._identify(request)
                return handler(request, *(None if group is None else unquote(group) for group in found.groups()))
        raise HubError(404, "Not found")

    def _identify(self, request: Request) -> Who | None:
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in self.tokens:
            raise HubError(401, "Invalid credentials in Authorization header")  # guess: everywhere
        return self.tokens.get(token)

    def _whoami(self, request: Request) -> Answer:
        who = request.who
        if who is None:
            raise HubError(401, "Invalid username or password.")
        token = {"displayName": "a test's token", "role": who.role}
        auth = {"type": "access_token", "accessToken": token}
        return Answer({"type": "user", "name": who.user, "fullname": who.user, "orgs": [], "auth": auth})

    def control(self, verb: str, args: dict[str, Any]) -> Any:
        """What a test asks of the double itself."""
        verbs: dict[str, Callable[..., Any]] = {
            "faults": self.faults.set,
            "release": self.faults.release,
            "held": lambda: self.faults.held,
            "requests": self.log.entries,
            "clear": self.log.clear,
            "clock": self.buckets.clock.set,
            "expire": self.cas.expire,
            "stored": lambda bucket: [file.listed(path) for path, file in self._files(bucket)],
            "content": lambda bucket, path: base64.b64encode(self.cas.content(self._hash(bucket, path))).decode(),
            "damage": self._damage,
            "mend": self.cas.mend,
            "remove": self.buckets.remove,
            "date": self.buckets.date,
            "add_model": lambda id_, folder, private: self.repos.add(id_, Path(folder), private),
            "settings": self._settings,
        }
        return verbs[verb](**args)

    def _files(self, bucket: str) -> list[tuple[str, Any]]:
        return sorted(self.buckets.find(bucket).files.items())

    def _hash(self, bucket: str, path: str) -> str:
        return self.buckets.find(bucket).files[path].hash

    def _damage(self, bucket: str, path: str, data: str | None) -> None:
        self.cas.damage(self._hash(bucket, path), None if data is None else base64.b64decode(data))

    def _settings(self, page: int, ttl: float) -> None:
        self.buckets.page, self.cas.ttl = page, ttl


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    double: Double

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr: the log is kept for tests."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        body = self._body()
        base = f"http://{self.headers['Host']}"
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), self.headers, body, base)
        if url.path.startswith(CONTROL):
            try:
                return self._send(
                    Answer({"value": self.double.control(url.path.removeprefix(CONTROL), request.json())})
                )
            except Exception as error:
                return self._send(Answer({"error": repr(error)}, 400))
        entry = self.double.log.begin(self.command, url.path, url.query, len(body))
        try:
            faults = self.double.faults.hit(f"{self.command} {self.path}", entry)
            answer = self._meet(request, faults)
            entry.user = request.who.user if request.who else ""
            self._send(answer, entry, half=any(fault.half for fault in faults))
        except (Dropped, ConnectionError):
            self._close()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _meet(self, request: Request, faults: list[Fault]) -> Answer:
        instead = None
        for fault in faults:
            self.double.faults.prepare(fault, request)
            instead = instead or self.double.faults.act(fault, "before")
        if instead:
            return instead
        try:
            answer = self.double.answer(request)
        except HubError as error:
            answer = error.answer
        for fault in faults:
            answer = self.double.faults.act(fault, "after") or answer
        return answer

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, answer: Answer, entry: Logged | None = None, half: bool = False) -> None:
        body = answer.raw()
        sent = b"" if self.command == "HEAD" else body[: len(body) // 2] if half else body
        if entry:  # before the client can know
            entry.status, entry.bytes_out = answer.status, len(sent)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **answer.headers}
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)
        self.wfile.flush()
        if half:
            self._close()

    def _close(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was first


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client is not worth a traceback; a mistake of the double is."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(options: Options) -> Server:
    """A server that listens; ``serve_forever`` answers."""
    handler = type("BoundHandler", (Handler,), {"double": Double(options)})
    return Server(("127.0.0.1", options.port), handler)
