"""The provider's REST API v2, as far as pods need it. A create is sent once, whatever the answer; see ``create.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from stepctl.targets.runpod.errors import (
    Ambiguous,
    NoStock,
    OddAnswer,
    Unreachable,
    says_no_stock,
    words,
)
from stepctl.targets.runpod.records import CreatePod, GpuType, LogLine, Pod, Secret, read_pod
from stepctl.targets.runpod.wire import CREATE_TIMEOUT, Wire

MOST_PAGES = 200
_MADE = (200, 201, 202)


class Api:
    """One account of the provider; ``first_pause`` is the first wait before a request is repeated."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        http: httpx.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        first_pause: float = 1.0,
    ) -> None:
        self._wire = Wire(url, key, http, sleep, now, first_pause)
        self.url = self._wire.url

    def __repr__(self) -> str:
        return f"Api({self.url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._wire.http.close()

    @property
    def account(self) -> str:
        """Stands for the address and the key in records, and tells neither."""
        return sha256(f"{self.url}\0{self._wire.key}".encode()).hexdigest()[:16]

    def another(self) -> Api:
        """The same account over connections of its own: for another thread."""
        return Api(self.url, self._wire.key, first_pause=self._wire.first_pause)

    def server_time(self) -> datetime | None:
        """The provider's clock, from the ``Date`` of its last answer; None before the first."""
        return self._wire.server_time()

    def pods(self) -> list[Pod]:
        """All pods of the account: the whole list, or an error, since absence from it is a proof.

        Raises:
            RunpodError: it cannot be had whole.
        """
        return [_pod(raw, "list the pods") for raw in self._pages("/pods", "pods", "list the pods")]

    def pod(self, pod_id: str) -> Pod | None:
        """One pod; None when the provider does not know it (404), which alone is no proof that it is gone."""
        doing = f"look at pod {pod_id}"
        response = self._wire.send("GET", _path("pods", pod_id), doing).response
        if response.status_code == 404:
            return None
        return _pod(self._json(response, doing), doing)

    def create(self, body: CreatePod) -> Pod:
        """Ask for a pod, once.

        Raises:
            NoStock: there is none of that type; ``status`` 5xx needs a look at the list, since the server failed.
            Ambiguous: the answer was lost, or says nothing certain: there may be a pod of that name.
            Unreachable: the request surely never left.
            RunpodError: another definite refusal.
        """
        doing = f"create the pod {body.name}"
        try:
            response = self._wire.send("POST", "/pods", doing, body=body, timeout=CREATE_TIMEOUT).response
        except Unreachable as error:
            if not error.sent:
                raise
            raise self._unknown(body.name, f"no answer came ({error.message})", None) from error
        status = response.status_code
        if status in _MADE:
            try:
                return read_pod(msgspec.json.decode(response.content))
            except msgspec.MsgspecError as error:
                raise self._unknown(body.name, "the answer cannot be read", status) from error
        said = words(response.content).replace(self._wire.key, "(key)")
        if says_no_stock(said) and (status == 400 or status >= 500):
            refused = NoStock(f"Runpod has no {body.gpu.id} now: {said}", safe="nothing was rented", next="try later")
            refused.status = status
            raise refused
        if status >= 500 or status < 400 or status == 408:
            raise self._unknown(body.name, f"the server answered {status}{f': {said}' if said else ''}", status)
        raise self._wire.error(response, doing)

    def delete(self, pod_id: str) -> bool:
        """Ask for a pod's end.

        Returns:
            False when the provider did not know it (404) although nobody asked before.
        """
        doing = f"delete pod {pod_id}"
        response, repeated = self._wire.send("DELETE", _path("pods", pod_id), doing)
        if response.status_code == 404:
            return repeated
        if not response.is_success:
            raise self._wire.error(response, doing)
        return True

    def action(self, pod_id: str, name: str) -> bool:
        """Ask for ``start``, ``stop``, ``restart`` or ``terminate``.

        Returns:
            False when the provider does not know the pod (404).

        Raises:
            Rejected: its state does not allow it (409).
        """
        doing = f"{name} pod {pod_id}"
        response = self._wire.send("POST", _path("pods", pod_id, "action"), doing, body={"action": name}).response
        if response.status_code == 404:
            return False
        if not response.is_success:
            raise self._wire.error(response, doing)
        return True

    def gpus(self, count: int, cloud: str, min_cuda_version: str | None = None) -> list[GpuType]:
        """The catalog, with what is said to be in stock for pods of ``count`` GPUs in ``cloud``."""
        doing = "read the list of GPU types"
        params = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": cloud}
        if min_cuda_version:
            params["minCudaVersion"] = min_cuda_version
        found = []
        for raw in self._pages("/catalog/gpus", "gpus", doing, params):
            # A row that cannot be read is a type that cannot be chosen.
            with suppress(msgspec.ValidationError):
                found.append(msgspec.convert(raw, GpuType, strict=False))
        return [each for each in found if each.id and each.id != "unknown"]

    def logs(
        self,
        pod_id: str,
        source: str = "container",
        tail: int = 100,
        *,
        seconds: float = 30.0,
        silence: float = 5.0,
    ) -> Iterator[LogLine]:
        """Lines of a pod's log, oldest first, until none comes for ``silence`` seconds or ``seconds`` are over.

        Args:
            pod_id: the pod.
            source: ``container`` or ``system``.
            tail: lines of the past, at most 5000.
            seconds: for all of it.
            silence: the stream stays open for what is still to come: this ends it.
        """
        doing = f"read the log of pod {pod_id}"
        heard = self._wire.now()
        end = heard + seconds
        params = {"source": source, "tail": str(tail)}
        with self._wire.stream(_path("pods", pod_id, "logs"), doing, params, read=silence) as lines:
            for line in lines:
                if line.startswith("data:"):
                    heard = self._wire.now()
                    with suppress(msgspec.MsgspecError):
                        yield msgspec.json.decode(line[5:], type=LogLine, strict=False)
                # Comments keep a stream alive, and say nothing.
                if self._wire.now() > min(end, heard + silence):
                    return

    def secrets(self) -> list[Secret]:
        """The account's secrets, without their values."""
        doing = "list the account's secrets"
        raws = self._pages("/account/secrets", "secrets", doing)
        try:
            return msgspec.convert(raws, list[Secret], strict=False)
        except msgspec.ValidationError as error:
            raise _odd(doing) from error

    def add_secret(self, name: str, value: str) -> None:
        """Add a secret.

        Raises:
            Rejected: there is one of that name (``status`` 409), or the server has no secrets (404).
            Unreachable: it is not known whether it was added.
        """
        doing = f"add the secret {name}"
        response = self._wire.send("POST", "/account/secrets", doing, body={"name": name, "value": value}).response
        if not response.is_success:
            raise self._wire.error(response, doing)

    def delete_secret(self, name: str) -> bool:
        """Delete a secret; False when there is none of that name."""
        found = [secret for secret in self.secrets() if secret.name == name]
        for secret in found:
            doing = f"delete the secret {name}"
            response = self._wire.send("DELETE", _path("account", "secrets", secret.id or name), doing).response
            if not response.is_success and response.status_code != 404:
                raise self._wire.error(response, doing)
        return bool(found)

    def _pages(self, path: str, name: str, doing: str, params: dict[str, str] | None = None) -> list[Any]:
        """All items of a list. No ``limit`` is sent: the documented server does not know it."""
        items: list[Any] = []
        cursor: Any = ""
        for _ in range(MOST_PAGES):
            asked = (params or {}) | ({"cursor": cursor} if cursor else {})
            page = self._json(self._wire.send("GET", path, doing, params=asked).response, doing)
            if not isinstance(page, dict) or not isinstance(page.get(name), list):
                raise _odd(doing)
            items += page[name]
            paging = page.get("pagination")
            if not isinstance(paging, dict) or not paging.get("hasNextPage"):
                return items
            before, cursor = cursor, paging.get("nextCursor")
            if not isinstance(cursor, str) or not cursor or cursor == before:
                break
        raise _odd(doing)

    def _json(self, response: httpx.Response, doing: str) -> Any:
        if not response.is_success:
            raise self._wire.error(response, doing)
        try:
            return msgspec.json.decode(response.content)
        except msgspec.MsgspecError as error:
            raise _odd(doing) from error

    def _unknown(self, name: str, why: str, status: int | None) -> Ambiguous:
        error = Ambiguous(
            f"Runpod: it is not known whether the pod {name} was made: {why}",
            cost=f"the pod {name}, if it was made; it ends itself when no client is heard",
            next="stepctl pod ls",
        )
        error.status = status
        return error


def _path(*parts: str) -> str:
    return "".join("/" + quote(part, safe="") for part in parts)


def _pod(raw: Any, doing: str) -> Pod:
    try:
        return read_pod(raw)
    except msgspec.ValidationError as error:
        raise _odd(doing) from error


def _odd(doing: str) -> OddAnswer:
    return OddAnswer(
        f"Runpod: cannot {doing}: the answer is not one of its API",
        next="check RUNPOD_API_URL and api_url, and whether a proxy stands between",
    )
