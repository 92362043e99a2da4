"""What tests, and people with curl, ask of the sandbox itself: ``POST /VERB`` with the arguments as JSON.

Served on an address of its own, which pods cannot reach. ``GET /`` lists the verbs.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .api import Api
from .base import Clock
from .catalog import Catalog
from .cloud import Cloud
from .faults import Faults, Quirks
from .inside import Inside
from .journal import Journal
from .pods import Pod
from .server import Door


class Control:
    """The verbs. ``inside`` reaches into real pods; None where there are none."""

    def __init__(
        self, cloud: Cloud, api: Api, faults: Faults, door: Door, inside: Inside | None, more: dict[str, Any]
    ) -> None:
        self.cloud, self.api, self.faults, self.door, self.about = cloud, api, faults, door, more
        self.verbs: dict[str, Callable[..., Any]] = {
            "about": self._about,
            "fault": self._fault,
            "faults": faults.listed,
            "clear": faults.clear,
            "held": faults.held,
            "release": faults.release,
            "journal": self._journal,
            "quirks": self._quirks,
            "settings": self._settings,
            "catalog": self.catalog.change,
            "volume": self.catalog.add_volume,
            "advance": self._advance,
            "down": door.shut,
            "up": door.open,
            "pods": self._pods,
            "end": self._end,
            "status": self._status,
            "pod": self._pod,
            "log": self._log,
            "logs": lambda pod, source="container": self.pod(pod).log.texts(source),
            "secrets": lambda: dict(cloud.secrets),
            "reset": self._reset,
        }
        for name in getattr(inside, "POD_VERBS", ()):
            self.verbs[name] = self._into(getattr(inside, name))
        for name in getattr(inside, "VERBS", ()):
            self.verbs[name] = getattr(inside, name)

    @property
    def journal(self) -> Journal:
        return self.cloud.journal

    @property
    def catalog(self) -> Catalog:
        return self.cloud.catalog

    @property
    def clock(self) -> Clock:
        return self.cloud.clock

    def pod(self, which: str) -> Pod:
        """A pod, also an ended one, by its id or name."""
        with self.cloud.lock:
            known = [*self.cloud.pods.values(), *reversed(self.cloud.gone.values())]
            for pod in known:
                if which in (pod.id, pod.name):
                    return pod
        raise KeyError(f"no pod {which}")

    def _into(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def verb(pod: str, **args: Any) -> Any:
            self.cloud.tick()
            return method(self.pod(pod), **args)

        verb.__doc__ = method.__doc__
        return verb

    def _fault(self, **fault: Any) -> int:
        """Let something go wrong with calls; fields of ``Fault`` in faults.py: its number."""
        return self.faults.add(fault)

    def _about(self) -> dict[str, Any]:
        return {"url": f"http://{self.door.host}:{self.door.port}/v2", "key": self.api.key, **self.about}

    def _journal(self, since: int = 0) -> list[dict[str, Any]]:
        """Calls and events from a place on, in order."""
        self.cloud.tick()
        return self.journal.entries(since)

    def _quirks(self, pod: str | None = None, **changes: Any) -> dict[str, Any]:
        """Change how pods made from now on behave, or one pod."""
        with self.cloud.lock:
            if pod is None:
                self.cloud.quirks = replace(self.cloud.quirks, **changes)
                return asdict(self.cloud.quirks)
            one = self.pod(pod)
            one.quirks = replace(one.quirks, **changes)
            for counted in ("unlisted", "unfound", "undying", "lingers"):
                if counted in changes:
                    setattr(one, counted, changes[counted])
            return asdict(one.quirks)

    def _settings(self, edge: bool = False, page: int = 0, limits: bool = False, minute: int = 60) -> None:
        """``edge``: generic user agents get 403; ``page``: pods on a page of a list; ``limits``: 429 for real;
        ``minute``: calls that are said to be allowed in one."""
        self.api.edge, self.api.page, self.api.limits.enforced = edge, page, limits
        self.api.limits.minute = minute

    def _advance(self, seconds: float) -> float:
        """Put the provider's clock forward (or back): what is due then happens now."""
        self.clock.offset += seconds
        self.cloud.tick()
        return self.clock.now()

    def _pods(self, ended: bool = False) -> list[dict[str, Any]]:
        """The pods that there are, or those that are gone, with what the API does not show."""
        with self.cloud.lock:
            self.cloud.tick()
            pods = list((self.cloud.gone if ended else self.cloud.pods).values())
            return [
                pod.view()
                | {"key": pod.key, "starts": pod.starts, "endedBy": pod.ended_by, "quirks": asdict(pod.quirks)}
                for pod in pods
            ]

    def _end(self, pod: str, who: str = "provider", note: str = "") -> None:
        """The pod vanishes."""
        self.cloud.end(self.pod(pod), who, note)

    def _status(self, pod: str, status: str = "EXITED") -> None:
        """The pod's container is gone, and its status is EXITED or ERROR."""
        with self.cloud.lock:
            one = self.pod(pod)
            self.cloud.stop(one, status)
            self.journal.event(status.lower(), one.id, one.name, "provider")

    def _pod(self, pod: str) -> dict[str, Any]:
        return _whole(self.pod(pod))

    def _log(self, pod: str, line: str, source: str = "container") -> None:
        """Add a line to a pod's log."""
        self.pod(pod).log.add(source, line)

    def _reset(self) -> None:
        """As at the start: no pods, faults, secrets, quirks; an empty journal; the real time."""
        self.faults.clear()
        self.door.open()
        with self.cloud.lock:
            for pod in list(self.cloud.pods.values()):
                self.cloud.end(pod, "sandbox")
            self.cloud.gone.clear()
            self.cloud.quirks = Quirks()
            self.clock.offset = 0.0
            self.catalog.reset()
            self.api.reset()
            self.journal.clear()

    def ask(self, verb: str, args: dict[str, Any]) -> Any:
        """Do what a verb says."""
        if verb not in self.verbs:
            raise KeyError(f"no verb {verb!r}; there are: {', '.join(self.verbs)}")
        return self.verbs[verb](**args)


def _whole(pod: Pod) -> dict[str, Any]:
    return pod.view() | {"key": pod.key, "starts": pod.starts, "endedBy": pod.ended_by, "quirks": asdict(pod.quirks)}


def serve(control: Control, port: int = 0) -> ThreadingHTTPServer:
    """Answer on 127.0.0.1, in a thread."""

    class Asked(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 1 << 16

        def log_message(self, format: str, *args: Any) -> None: ...

        def do_GET(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            verb = self.path.strip("/")
            try:
                value = control.ask(verb, json.loads(raw or b"{}")) if verb else _listed(control)
                status, body = 200, {"value": value}
            except Exception as error:
                status, body = 400, {"error": f"{type(error).__name__}: {error}"}
            data = json.dumps(body, indent=1).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", port), Asked)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def _listed(control: Control) -> dict[str, str]:
    return {name: f"{inspect.signature(verb)} {inspect.getdoc(verb) or ''}" for name, verb in control.verbs.items()}
