"""Plain calls of the API, for the tests of the double itself."""

from __future__ import annotations

from typing import Any

import httpx

from .client import Sandbox

GPU = "NVIDIA GeForce RTX 4090"
CREATES = r"^POST /v2/pods$"


def client(sandbox: Sandbox, key: str = Sandbox.key) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}", "User-Agent": "tests/1"}
    return httpx.Client(base_url=sandbox.url, headers=headers, timeout=10)


def body(name: str = "one", **more: Any) -> dict[str, Any]:
    """A body that makes a pod."""
    given = {"name": name, "image": "i", "gpu": {"id": GPU, "count": 1}, "cloud": "SECURE", "disk": 50}
    return {**given, "ports": ["22/tcp"], "env": {"PUBLIC_KEY": "k"}, **more}


def create(api: httpx.Client, name: str = "one", **more: Any) -> dict[str, Any]:
    """Make a pod: as the answer shows it."""
    answer = api.post("/pods", json=body(name, **more))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def names(api: httpx.Client) -> list[str]:
    """The names of the pods in a list."""
    return [pod["name"] for pod in api.get("/pods").json()["pods"]]
