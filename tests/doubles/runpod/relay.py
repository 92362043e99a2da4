"""A TCP relay: makes a port of this machine reachable for pods, or a link slow."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable


class Relay:
    """Listens on ``host:port`` and passes everything on to ``target``; each piece arrives ``delay`` seconds late.

    ``let_in`` is asked for each connection first.
    """

    def __init__(
        self,
        host: str,
        target: tuple[str, int],
        *,
        port: int = 0,
        delay: float = 0.0,
        let_in: Callable[[], bool] = lambda: True,
    ) -> None:
        self.target, self.delay, self.let_in = target, delay, let_in
        self._listener = socket.create_server((host, port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Cut every connection."""
        for one in [self._listener, *self._open]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        if not self.let_in():
            return near.close()
        try:
            far = socket.create_connection(self.target, 5)
        except OSError:
            return near.close()
        far.settimeout(None)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(one)
        for source, sink in ((near, far), (far, near)):
            pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(1024)
            threading.Thread(target=self._read, args=(source, pieces), daemon=True).start()
            threading.Thread(target=self._write, args=(sink, pieces), daemon=True).start()

    def _read(self, source: socket.socket, pieces: queue.Queue[tuple[float, bytes]]) -> None:
        try:
            while data := source.recv(65536):
                pieces.put((time.monotonic() + self.delay, data))
        except OSError:
            pass
        pieces.put((time.monotonic() + self.delay, b""))

    def _write(self, sink: socket.socket, pieces: queue.Queue[tuple[float, bytes]]) -> None:
        try:
            while True:
                due, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(data)
        except OSError:
            return
        finally:
            self._open.discard(sink)
