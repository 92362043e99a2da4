"""Every call of the API and every SSH command of a whole run, by name: where a client can be killed."""

from __future__ import annotations

from dataclasses import dataclass

from tests.doubles.runpod import Fault
from tests.doubles.runpod.faults import When

POD = r"^GET /v2/pods/\w+$"
PODS = r"^GET /v2/pods$"
CREATE = r"^POST /v2/pods$"
CATALOG = r"^GET /v2/catalog/gpus"
SECRETS = r"^GET /v2/account/secrets$"
DELETE_SECRET = r"^DELETE /v2/account/secrets/"
DELETE = r"^DELETE /v2/pods/"


@dataclass(frozen=True)
class Point:
    """The ``nth`` call that matches, of those after one that matches ``since`` (see ``Fault``)."""

    name: str
    match: str
    nth: int = 1
    since: str = ""

    def fault(self, when: When) -> Fault:
        """Holds the call there, once."""
        return Fault(self.match, who="account", since=self.since, nth=self.nth, when=when, hold=True)


def ssh(what: str) -> str:
    return f"^SSH {what}$"


RUN = (
    Point("pods-elsewhere", PODS),
    Point("catalog-plan", CATALOG),
    Point("pods-strays", PODS, nth=2),
    Point("add-secret", r"^POST /v2/account/secrets$"),
    Point("catalog", CATALOG, nth=2),
    Point("create", CREATE),
    Point("pod-boot", POD),
    Point("connect-first", ssh("connect")),
    Point("secrets", SECRETS),
    Point("delete-secret", DELETE_SECRET),
    Point("pod-limit", POD, since=DELETE_SECRET),
    Point("connect-limit", ssh("connect"), since=DELETE_SECRET),
    Point("limit", ssh("shell")),
    Point("pod-setup", POD, since=ssh("shell")),
    Point("connect-setup", ssh("connect"), since=ssh("shell")),
    Point("setup", ssh("setup")),
    Point("wheel", ssh("wheel")),
    Point("attach", ssh("attach")),
    Point("hello", ssh("ask hello")),
    Point("find", ssh("ask find")),
    Point("have-parent", ssh("ask have")),
    Point("renew", ssh("ask hello"), since=ssh("ask have")),
    Point("unpack-parent", ssh("unpack")),
    Point("have-model", ssh("ask have"), nth=2),
    Point("unpack-model", ssh("unpack"), nth=2),
    Point("launch", ssh("launch")),
    Point("payload", ssh("payload")),
    Point("poll", ssh("ask poll")),
    Point("pod-job", POD, since=ssh("payload")),
    Point("poll-more", ssh("ask poll"), nth=2),
    Point("over", ssh("over")),
    Point("find-saved", ssh("ask find"), since=ssh("over")),
    Point("pack", ssh("pack")),
    Point("logs", r"^GET /v2/pods/\w+/logs"),
    Point("delete", DELETE),
    Point("gone-1", POD, since=DELETE),
    Point("gone-2", POD, nth=2, since=DELETE),
    Point("gone-3", POD, nth=3, since=DELETE),
    Point("gone-list", PODS, since=DELETE),
    Point("last-list", PODS, nth=2, since=DELETE),
)
"""In the order in which a run without faults comes to them."""

REPEATED = (POD, PODS, ssh("connect"), ssh("ask poll"), ssh("ask hello"), ssh("over"))
"""Calls that are made as often as it takes; every other one is as often in a run as it is in ``RUN``."""
