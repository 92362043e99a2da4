"""One pod: what was asked for, what it is now, and what the API shows of it."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import string
from dataclasses import dataclass, field
from typing import Any

from .base import Clock, iso
from .faults import Quirks
from .logs import PodLog

ACTIONS = {
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "TERMINATED": [],
}
ALPHABET = string.ascii_lowercase + string.digits


@dataclass
class Pod:
    """The state of a pod. Times are seconds since 1970 of the provider's clock.

    status: as the API shows it; a deleted pod that lingers is TERMINATED.
    booted_at: when it was created, or last started again: ``Quirks.boot`` counts from here.
    started_at: the start of its container; None while it boots or is stopped.
    inner_port: where a real pod takes SSH in; ``port`` is what it shows.
    restart_at: when a container that exited runs again.
    ends_at: when a delete that was answered takes effect; ``ended_by`` is who asked.
    """

    body: dict[str, Any]
    price: float
    center: str
    quirks: Quirks
    clock: Clock
    id: str = field(default_factory=lambda: "".join(secrets.choice(ALPHABET) for _ in range(14)))
    key: str = field(default_factory=lambda: "rpa_pod_" + secrets.token_hex(16))
    status: str = "RUNNING"
    created_at: float = 0.0
    booted_at: float = 0.0
    started_at: float | None = None
    restart_at: float | None = None
    ends_at: float | None = None
    ended_by: str = ""
    host: str = ""
    port: int = 0
    inner_port: int = 0
    starts: int = 0
    unlisted: int = 0
    unfound: int = 0
    undying: int = 0
    lingers: int = 0
    locked: bool = False

    def __post_init__(self) -> None:
        self.created_at = self.booted_at = self.clock.now()
        self.log = PodLog(self.clock.now)
        self.unlisted, self.unfound = self.quirks.unlisted, self.quirks.unfound
        self.undying, self.lingers = self.quirks.undying, self.quirks.lingers

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def runs(self) -> bool:
        """Whether it is, or will come to be, a running container."""
        return self.status not in ("EXITED", "ERROR", "TERMINATED")

    @property
    def shown_status(self) -> str:
        return self.quirks.boot_status if self.runs and self.started_at is None else self.status

    @property
    def reachable(self) -> bool:
        """Whether the API shows its address."""
        started = self.started_at
        return self.runs and started is not None and self.clock.now() >= started + self.quirks.address

    @property
    def odd(self) -> bool:
        """Whether it shows what the provider's document does not allow."""
        return isinstance(self.quirks.price, str)

    @property
    def volume(self) -> dict[str, str] | None:
        """Its network volume: ``volumeId`` and ``path``."""
        mounts: list[dict[str, str]] = self.body.get("mounts", {}).get("network", [])
        return mounts[0] if mounts else None

    def command(self) -> list[str]:
        """The start command; empty means that of the image."""
        if self.quirks.loop:
            return ["sh", "-c", "echo 'start command failed: no such file' >&2; exit 127"]
        args = self.body.get("args", "")
        try:
            parts = json.loads(args)
        except ValueError:
            return shlex.split(args)
        if not isinstance(parts, dict):
            return shlex.split(args)
        return [*parts.get("entrypoint", []), *parts.get("cmd", [])]

    def env(self, values: dict[str, str]) -> dict[str, str]:
        """The container's environment; ``values``: the account's secrets.

        Where there is no such secret the text stays (a guess).
        """

        def put(text: str) -> str:
            return re.sub(r"\{\{ *RUNPOD_SECRET_(\w+) *\}\}", lambda m: values.get(m[1], m[0]), text)

        given = {name: put(value) for name, value in self.body.get("env", {}).items()}
        own = {
            "RUNPOD_POD_ID": self.id,
            "RUNPOD_POD_HOSTNAME": self.id,
            "RUNPOD_API_KEY": self.key,
            "RUNPOD_DC_ID": self.center,
            "RUNPOD_GPU_COUNT": str(self.body["gpu"]["count"]),
            "RUNPOD_PUBLIC_IP": self.host,
            "RUNPOD_TCP_PORT_22": str(self.port),
        }
        if self.volume:
            own["RUNPOD_VOLUME_ID"] = self.volume["volumeId"]
        return {**given, **own}

    def view(self) -> dict[str, Any]:
        """The pod as the API shows it now."""
        asked, now = self.body, self.clock.now()
        shown: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "status": self.shown_status,
            "actions": ACTIONS[self.shown_status],
            "image": asked["image"],
            "args": asked.get("args", ""),
            "disk": asked.get("disk", 50),
            "mounts": asked.get("mounts", {}),
            "ports": asked.get("ports", []),
            "env": asked.get("env", {}),
            "registry": asked.get("registry"),
            "gpu": {"id": asked["gpu"]["id"], "count": asked["gpu"]["count"]},
            "cloud": asked.get("cloud", "SECURE"),
            "dataCenterId": self.center,
            "cudaVersion": "12.8",
            "ssh": self._ssh(),
            "template": None,
            "cost": self.price if self.runs else 0.0,
            "locked": self.locked,
            "globalNetworking": {"enabled": False},
            "runtime": None,
            "createdAt": iso(self.created_at),
            "startedAt": None if self.started_at is None else iso(self.started_at),
        }
        if self.quirks.price == "missing":
            del shown["cost"]
        elif self.quirks.price is not None:
            shown["cost"] = self.quirks.price
        if self.reachable and self.started_at is not None:
            gpus = [{"util": 0, "memoryUtil": 0}] * asked["gpu"]["count"]
            uptime = int(now - self.started_at)
            shown["runtime"] = {"uptime": uptime, "gpus": gpus, "cpu": {"util": 1}, "memory": {"util": 1}}
            shown["runtime"]["ports"] = self._ports()
        return shown

    def _ssh(self) -> dict[str, Any]:
        user = f"{self.id}-64411eb2"
        proxy = {"host": "ssh.runpod.io", "port": 22, "username": user, "command": f"ssh {user}@ssh.runpod.io"}
        direct = None
        if self.reachable and "22/tcp" in self.body.get("ports", []):
            command = f"ssh root@{self.host} -p {self.port}"
            direct = {"host": self.host, "port": self.port, "username": "root", "command": command}
        return {"proxy": proxy, "direct": direct}

    def _ports(self) -> list[dict[str, Any]]:
        inner = {"private": 19123, "public": 60000, "type": "http", "ip": "100.65.0.2"}
        ssh = {"private": 22, "public": self.port, "type": "tcp", "ip": self.host}
        return [inner, ssh] if "22/tcp" in self.body.get("ports", []) else [inner]
