"""The API's HTTP server: one request in, its faults, its handler, one answer out; everything journalled and checked."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from .api import Api
from .base import Answer, Clock, Problem, Request
from .contract import Contract
from .faults import Dropped, Fault, Faults
from .journal import Entry, Journal


class Desk:
    """What the handlers of all connections share."""

    def __init__(self, api: Api, faults: Faults, journal: Journal, contract: Contract, clock: Clock) -> None:
        self.api, self.faults, self.journal, self.contract, self.clock = api, faults, journal, contract, clock

    def meet(self, request: Request, entry: Entry, faults: dict[int, Fault]) -> Answer:
        """The answer to a request, with its faults.

        Raises:
            Dropped: there is none.
        """
        for fault in faults.values():
            instead = self.faults.act(fault, "before", request, entry.n)
            if instead:
                request.exempt = True
                return instead
        changes = {name: value for fault in faults.values() for name, value in fault.pod.items()}
        try:
            answer = self.api.answer(request, changes)
        except Problem as problem:
            answer = problem.answer
        except Exception as error:
            entry.violations.append(f"the sandbox itself failed: {error!r}")
            print(traceback.format_exc(), file=sys.stderr)
            answer = Problem(500, "the sandbox itself failed").answer
        entry.effect = answer.effect
        for fault in faults.values():
            instead = self.faults.act(fault, "after", request, entry.n)
            if instead:
                request.exempt = True
                answer = instead
        return answer


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    desk: Desk
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: there is the journal."""

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.desk.clock.now() if timestamp is None else timestamp)

    def do_GET(self) -> None:
        desk, url = self.desk, urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, url.path, url.query, self.headers, raw)
        names = desk.api.identify(request)
        entry = desk.journal.begin(request.who, self.command, url.path, url.query, _shown(request))
        try:
            faults = desk.faults.meet(request, names)
            entry.faults = list(faults)
            entry.violations = desk.contract.request(request)
            answer = desk.meet(request, entry, faults)
            entry.status = answer.status  # before the client can know
            self._send(request, answer, entry)
        except (Dropped, ConnectionError):
            self._close()
        finally:
            desk.journal.end(entry)
            if request.then:
                request.then()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _send(self, request: Request, answer: Answer, entry: Entry) -> None:
        raw = answer.encoded()
        headers = {"x-request-id": secrets.token_hex(8), **answer.headers}
        typed = answer.content_type if raw or answer.stream else ""
        entry.violations += self.desk.contract.answer(request, answer)
        self.send_response(answer.status)
        if typed:
            self.send_header("Content-Type", typed)
        for name, value in headers.items():
            self.send_header(name, value)
        if answer.stream:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer.stream:
                self._write(b"%x\r\n%s\r\n" % (len(piece), piece))
            return self._write(b"0\r\n\r\n")
        if answer.status != 204:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self._write(b"" if self.command == "HEAD" else raw)

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def _close(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was first


def _shown(request: Request) -> dict[str, Any] | None:
    """A request's body for the journal, without the value of a secret."""
    try:
        body = json.loads(request.raw)
    except ValueError:
        return None
    if isinstance(body, dict) and "value" in body:
        body["value"] = "(secret)"
    return body if isinstance(body, dict) else None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client is not worth a traceback; a mistake of the double is."""
        if not isinstance(sys.exc_info()[1], ConnectionError | ValueError):
            super().handle_error(request, client_address)


class Door:
    """The API's socket, which can be shut for a while: connections are refused, open ones cut."""

    def __init__(self, desk: Desk, host: str, port: int = 0) -> None:
        self._handler = type("BoundHandler", (Handler,), {"desk": desk})
        self._lock = threading.Lock()
        self._server: Server | None = None
        self.host, self.port = host, port
        self.open()

    def open(self) -> None:
        with self._lock:
            if self._server is None:
                self._server = Server((self.host, self.port), self._handler)
                self.port = self._server.server_address[1]
                threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def shut(self, seconds: float = 0.0) -> None:
        """Nobody is at home, for so long, or until ``open``."""
        with self._lock:
            server, self._server = self._server, None
        if server:
            server.shutdown()
            server.server_close()
            for connection in list(server.connections):
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
        if seconds:
            threading.Timer(seconds, self.open).start()
