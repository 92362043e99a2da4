"""All pods of the account: making, finding, starting, stopping and ending them, and what time does to them."""

from __future__ import annotations

import threading
from dataclasses import asdict, replace
from typing import Any, Protocol

from .base import Clock, Problem
from .catalog import CENTERS, Catalog, at_least
from .faults import NO_STOCK, Quirks
from .journal import Journal
from .pods import ACTIONS, Pod


class Containers(Protocol):
    """Where the containers of pods run."""

    def place(self, pod: Pod) -> tuple[str, int]:
        """An address for a pod that boots: host and port of its SSH."""

    def start(self, pod: Pod, env: dict[str, str]) -> None:
        """Run the pod's container."""

    def open(self, pod: Pod) -> None:
        """Let SSH in (``Quirks.sshd``)."""

    def kill(self, pod: Pod, *, wipe: bool) -> None:
        """End all processes of the pod; ``wipe`` its disk too. Repeating it does no harm."""

    def forget(self, pod: Pod) -> None:
        """The pod is gone for good: nothing of it stays."""

    def close(self) -> None:
        """End everything."""


class Records:
    """No containers: pods are records."""

    def __init__(self) -> None:
        self._port = 30000

    def place(self, pod: Pod) -> tuple[str, int]:
        if pod.quirks.ssh:
            host, port = pod.quirks.ssh.rsplit(":", 1)
            return host, int(port)
        self._port += 1
        return "127.77.0.1", self._port

    def start(self, pod: Pod, env: dict[str, str]) -> None: ...

    def open(self, pod: Pod) -> None: ...

    def kill(self, pod: Pod, *, wipe: bool) -> None: ...

    def forget(self, pod: Pod) -> None: ...

    def close(self) -> None: ...


class Cloud:
    """The account's pods. Everything holds ``lock``; ``who`` is as in the journal."""

    def __init__(self, clock: Clock, journal: Journal, catalog: Catalog, containers: Containers) -> None:
        self.clock, self.journal, self.catalog, self.containers = clock, journal, catalog, containers
        self.lock = threading.RLock()
        self.quirks = Quirks()
        self.secrets: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.gone: dict[str, Pod] = {}

    # What callers of the API do.

    def create(self, body: dict[str, Any], changes: dict[str, Any]) -> Pod:
        """Make the pod that a checked body asks for; it boots with the next ``tick``, as no create shows an address.

        Raises:
            Problem: 400 when there is no such machine.
        """
        with self.lock:
            gpu, cloud = self.catalog.gpus.get(body["gpu"]["id"]), body.get("cloud", "SECURE")
            count = body["gpu"].get("count")  # left out, the live API finds no instance
            center = self._center(body)
            if gpu is None or not count or cloud not in gpu.clouds or count > gpu.max_count or not center:
                raise Problem(400, NO_STOCK)
            floor, exact = body["gpu"].get("minCudaVersion"), body["gpu"].get("allowedCudaVersions")
            if not all(any(f(v) for v in gpu.cuda) for f in _versions(floor, exact)):
                raise Problem(400, NO_STOCK)
            quirks = Quirks(**{**asdict(self.quirks), **changes})
            price = round(gpu.price(cloud) * count, 4)
            pods = [Pod(body, price, center, quirks, self.clock) for _ in range(2 if quirks.twin else 1)]
            for pod in pods:
                pod.host, pod.port = self.containers.place(pod)
                self.pods[pod.id] = pod
                pod.log.add("system", f"create container {body['image']}")
                self.journal.event("created", pod.id, pod.name, "account", "twin" if pod is not pods[0] else "")
            return pods[0]

    def listed(self) -> list[Pod]:
        """The pods that a list shows: those that appear late are counted down by each list."""
        with self.lock:
            self.tick()
            shown = [pod for pod in self.pods.values() if pod.unlisted <= 0]
            for pod in self.pods.values():
                pod.unlisted -= 1
            return shown

    def find(self, id_: str, *, look: bool = False) -> Pod:
        """A pod by its id; ``look``: a GET, which some quirks count.

        Raises:
            Problem: 404.
        """
        with self.lock:
            self.tick()
            pod, ended = self.pods.get(id_), self.gone.get(id_)
            if look and pod and pod.unfound > 0:
                pod.unfound -= 1
                pod = None
            if look and not pod and ended and ended.lingers > 0:
                ended.lingers -= 1
                return ended
            if not pod:
                raise Problem(404, "pod not found")
            return pod

    def delete(self, id_: str, who: str, *, kill: bool = True) -> Pod:
        """End a pod. Without ``kill`` its processes live until ``reap``: it is itself that asks.

        Raises:
            Problem: 404.
        """
        with self.lock:
            pod = self.find(id_)
            if pod.undying:
                pod.undying -= 1 if pod.undying > 0 else 0
                return pod
            pod.ended_by = pod.ended_by or who
            pod.ends_at = self.clock.now() + pod.quirks.end if pod.ends_at is None else pod.ends_at
            if pod.ends_at <= self.clock.now():
                self.end(pod, pod.ended_by, kill=kill)
            return pod

    def act(self, id_: str, action: str, who: str) -> Pod:
        """``start``, ``stop`` or ``restart``.

        Raises:
            Problem: 404; 409 when the pod's status does not allow it.
        """
        with self.lock:
            pod = self.find(id_)
            if action not in ACTIONS[pod.shown_status] or (pod.locked and action != "start"):
                raise Problem(409, f"action {action} is not valid for status {pod.shown_status}")
            if action == "start":
                pod.status, pod.booted_at = "RUNNING", self.clock.now()
                pod.host, pod.port = self.containers.place(pod)
            elif action == "stop":
                self.stop(pod, "EXITED")
            else:
                self.containers.kill(pod, wipe=True)
                pod.started_at, pod.booted_at = None, self.clock.now()
            self.journal.event({"start": "started again", "stop": "stopped"}.get(action, action), id_, pod.name, who)
            self.tick()
            return pod

    # What happens to pods.

    def stop(self, pod: Pod, status: str) -> None:
        """Its container is gone, its disk wiped; it stays as a record."""
        self.containers.kill(pod, wipe=True)
        pod.status, pod.started_at, pod.restart_at = status, None, None

    def end(self, pod: Pod, who: str, note: str = "", *, kill: bool = True) -> None:
        """It is gone."""
        with self.lock:
            if self.pods.pop(pod.id, None) is None:
                return
            self.gone[pod.id] = pod
            pod.status, pod.ended_by = "TERMINATED", who
            self.journal.event("ended", pod.id, pod.name, who, note)
            if kill:
                self.reap(pod)

    def reap(self, pod: Pod) -> None:
        """Nothing of an ended pod is left when this returns."""
        with self.lock:
            self.containers.kill(pod, wipe=True)
            self.containers.forget(pod)
            pod.log.close()

    def exited(self, pod: Pod, code: int) -> None:
        """The container's start command ended by itself: the provider runs it again, and the status stays."""
        with self.lock:
            if pod.id in self.pods and pod.runs and pod.started_at is not None:
                pod.restart_at = self.clock.now() + pod.quirks.restart
                self.journal.event("exited", pod.id, pod.name, pod.id, f"code {code}")

    def tick(self) -> None:
        """Do what is due."""
        with self.lock:
            for pod in list(self.pods.values()):
                self._pass(pod, self.clock.now())

    def _pass(self, pod: Pod, now: float) -> None:
        quirks, age = pod.quirks, now - pod.created_at
        if pod.ends_at is not None and now >= pod.ends_at:
            return self.end(pod, pod.ended_by)
        if quirks.vanish is not None and age >= quirks.vanish:
            return self.end(pod, "provider", "vanished")
        if pod.runs and quirks.exit is not None and age >= quirks.exit:
            pod.quirks = replace(quirks, exit=None)
            self.stop(pod, quirks.exit_status)
            return self.journal.event(quirks.exit_status.lower(), pod.id, pod.name, "provider")
        if pod.runs and pod.started_at is None and now >= pod.booted_at + quirks.boot:
            pod.started_at = now
            self._start(pod, "started")
        if pod.restart_at is not None and now >= pod.restart_at:
            pod.restart_at = None
            self._start(pod, "restarted")
        if quirks.sshd and pod.started_at is not None and now >= pod.started_at + quirks.sshd:
            pod.quirks = replace(quirks, sshd=0.0)
            self.containers.open(pod)

    def _start(self, pod: Pod, event: str) -> None:
        pod.starts += 1
        pod.log.add("system", f"start container for {pod.body['image']}: begin")
        try:
            self.containers.start(pod, pod.env(self.secrets))
        except Exception as error:  # of the sandbox's own making: tests must see it
            self.journal.event("failed", pod.id, pod.name, "sandbox", repr(error))
        else:
            self.journal.event(event, pod.id, pod.name, "provider")

    def _center(self, body: dict[str, Any]) -> str | None:
        """The data center that the pod gets; None when there is none."""
        gpu = self.catalog.gpus.get(body["gpu"]["id"])
        wanted = body.get("dataCenterIds") or list(CENTERS)
        mounts = body.get("mounts", {}).get("network", [])
        if mounts:
            volume = self.catalog.volumes.get(mounts[0]["volumeId"])
            if volume is None:
                raise Problem(404, "network volume not found")
            wanted = [center for center in wanted if center == volume.center]
        return next((center for center in wanted if gpu and center in gpu.centers), None)


def _versions(floor: str | None, exact: list[str] | None) -> list[Any]:
    wanted: list[Any] = [lambda version: at_least(version, floor)] if floor else []
    return wanted + ([lambda version: version in exact] if exact else [])
