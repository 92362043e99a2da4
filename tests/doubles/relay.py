"""A TCP relay between a client and a server that a test can cut, freeze or slow down."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time


class Relay:
    """Frozen, it takes what comes, so that it is acknowledged, and passes nothing on: a middlebox that forgot us."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flow = threading.Event()
        self._flow.set()
        self.refusing = False
        self.cut_after: int | None = None
        self.freeze_after: int | None = None
        self.up = 0
        """Bytes from clients to the server, over all connections."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._to, 5)
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flow.wait()
                if up and self.cut_after is not None and self.up + len(data) > self.cut_after:
                    target.sendall(data[: max(self.cut_after - self.up, 0)])
                    self.cut_after = None
                    self.reset()
                    return
                if up and self.freeze_after is not None and self.up > self.freeze_after:
                    self.freeze_after = None
                    self.freeze()
                target.sendall(data)
                self.up += len(data) if up else 0
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def freeze(self) -> None:
        """Pass nothing on from now on."""
        self._flow.clear()

    def thaw(self) -> None:
        """Pass everything on again."""
        self._flow.set()

    def reset(self) -> None:
        """End all connections at once, as a reboot of what is between would."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                _reset(each)

    def cut(self, refuse: bool = True) -> None:
        """End all connections, and take no new ones until :meth:`mend`."""
        self.refusing = refuse
        self.reset()

    def mend(self) -> None:
        """Take connections again."""
        self.refusing = False
        self.thaw()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self.thaw()
        self.reset()
        time.sleep(0)


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        sock.close()
