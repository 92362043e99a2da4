"""The provider's REST API v2, as far as pods need it. A create is sent once, whatever the answer; see ``create.py``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from stepctl import __version__
from stepctl.base.errors import UsageError
from stepctl.targets.runpod.errors import (
    Ambiguous,
    NoStock,
    OddAnswer,
    RunpodError,
    Unreachable,
    explain,
    says_no_stock,
    words,
)
from stepctl.targets.runpod.records import CreatePod, GpuType, LogLine, Pod, Secret, read_pod

USER_AGENT = f"stepctl/{__version__}"
TRIES = 5
"""Of a request that may be repeated."""

LONGEST_PAUSE = 30.0
LONGEST_LIMIT = 180.0
"""Seconds that one request may be held back by rate limits, all together."""

MOST_PAGES = 200
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
_CREATE_TIMEOUT = httpx.Timeout(90.0, connect=10.0)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_MADE = (200, 201, 202)
_WINDOW = re.compile(r'"?\w+"?\s*;[^,]*')


class Answer(NamedTuple):
    """An answer; ``repeated`` when an earlier try of the same request may have had its effect."""

    response: httpx.Response
    repeated: bool


class Api:
    """One account of the provider. ``first_pause`` is the first wait before a repeat, doubled from one to the next."""

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
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(
                "the Runpod API key has characters that no key has",
                next="set RUNPOD_API_KEY anew: copy the key alone",
            )
        self.url = url.rstrip("/")
        self._key, self._sleep, self._now, self._first_pause = key, sleep, now, first_pause
        # A proxy of the environment is for the way out, not for an address of this network.
        self._http = http or httpx.Client(trust_env=self.url.startswith("https:"))
        self._date: tuple[datetime, float] | None = None
        self._hold_until = 0.0

    def __repr__(self) -> str:
        return f"Api({self.url!r})"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def server_time(self) -> datetime | None:
        """The provider's clock, from the ``Date`` of its last answer; None before the first."""
        if self._date is None:
            return None
        date, at = self._date
        return date + timedelta(seconds=self._now() - at)

    def pods(self) -> list[Pod]:
        """All pods of the account: the whole list, or an error, since absence from it is a proof.

        Raises:
            RunpodError: it cannot be had whole.
        """
        return [_pod(raw, "list the pods") for raw in self._pages("/pods", "pods", "list the pods")]

    def pod(self, pod_id: str) -> Pod | None:
        """One pod; None when the provider does not know it (404), which alone is no proof that it is gone."""
        doing = f"look at pod {pod_id}"
        response = self._send("GET", _path("pods", pod_id), doing).response
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
            response = self._send("POST", "/pods", doing, body=body, timeout=_CREATE_TIMEOUT).response
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
        said = words(response.content).replace(self._key, "(key)")
        if says_no_stock(said) and (status == 400 or status >= 500):
            refused = NoStock(f"Runpod has no {body.gpu.id} now: {said}", safe="nothing was rented", next="try later")
            refused.status = status
            raise refused
        if status >= 500 or status < 400 or status == 408:
            raise self._unknown(body.name, f"the server answered {status}{f': {said}' if said else ''}", status)
        raise self._error(response, doing)

    def delete(self, pod_id: str) -> bool:
        """Ask for a pod's end.

        Returns:
            False when the provider did not know it (404) although nobody asked before.
        """
        doing = f"delete pod {pod_id}"
        response, repeated = self._send("DELETE", _path("pods", pod_id), doing)
        if response.status_code == 404:
            return repeated
        if not response.is_success:
            raise self._error(response, doing)
        return True

    def action(self, pod_id: str, name: str) -> bool:
        """Ask for ``start``, ``stop``, ``restart`` or ``terminate``.

        Returns:
            False when the provider does not know the pod (404).

        Raises:
            Rejected: its state does not allow it (409).
        """
        doing = f"{name} pod {pod_id}"
        response = self._send("POST", _path("pods", pod_id, "action"), doing, body={"action": name}).response
        if response.status_code == 404:
            return False
        if not response.is_success:
            raise self._error(response, doing)
        return True

    def gpus(self, count: int, cloud: str) -> list[GpuType]:
        """The catalog, with what is said to be in stock for pods of ``count`` GPUs in ``cloud``."""
        doing = "read the list of GPU types"
        params = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": cloud}
        found = []
        for raw in self._pages("/catalog/gpus", "gpus", doing, params):
            # A row that cannot be read is a type that cannot be chosen.
            with suppress(msgspec.ValidationError):
                found.append(msgspec.convert(raw, GpuType, strict=False))
        return [each for each in found if each.id and each.id != "unknown"]

    def logs(
        self, pod_id: str, source: str = "container", tail: int = 100, *, seconds: float = 30.0
    ) -> Iterator[LogLine]:
        """Lines of a pod's log, oldest first, until none comes for 5 seconds or ``seconds`` are over.

        Args:
            pod_id: the pod.
            source: ``container`` or ``system``.
            tail: lines of the past, at most 5000.
            seconds: for all of it.
        """
        doing = f"read the log of pod {pod_id}"
        request = self._http.build_request(
            "GET",
            self.url + _path("pods", pod_id, "logs"),
            params={"source": source, "tail": str(tail)},
            headers=self._headers() | {"Accept": "text/event-stream"},
            timeout=httpx.Timeout(30.0, connect=10.0, read=5.0),
        )
        end = self._now() + seconds
        try:
            response = self._http.send(request, stream=True)
        except httpx.RequestError as error:
            raise self._lost(error, doing) from error
        try:
            if not response.is_success:
                response.read()
                raise self._error(response, doing)
            # The stream stays open for what is still to come: silence ends it.
            with suppress(httpx.RequestError):
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        with suppress(msgspec.MsgspecError):
                            yield msgspec.json.decode(line[5:], type=LogLine, strict=False)
                    if self._now() > end:
                        return
        finally:
            response.close()

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
        response = self._send("POST", "/account/secrets", doing, body={"name": name, "value": value}).response
        if not response.is_success:
            raise self._error(response, doing)

    def delete_secret(self, name: str) -> bool:
        """Delete a secret; False when there is none of that name."""
        found = [secret for secret in self.secrets() if secret.name == name]
        for secret in found:
            doing = f"delete the secret {name}"
            response = self._send("DELETE", _path("account", "secrets", secret.id or name), doing).response
            if not response.is_success and response.status_code != 404:
                raise self._error(response, doing)
        return bool(found)

    def _pages(self, path: str, name: str, doing: str, params: dict[str, str] | None = None) -> list[Any]:
        """All items of a list. No ``limit`` is sent: the documented server does not know it."""
        items: list[Any] = []
        cursor: Any = ""
        for _ in range(MOST_PAGES):
            asked = (params or {}) | ({"cursor": cursor} if cursor else {})
            page = self._json(self._send("GET", path, doing, params=asked).response, doing)
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
            raise self._error(response, doing)
        try:
            return msgspec.json.decode(response.content)
        except msgspec.MsgspecError as error:
            raise _odd(doing) from error

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}", "User-Agent": USER_AGENT, "Accept": "application/json"}

    def _send(
        self,
        method: str,
        path: str,
        doing: str,
        *,
        params: dict[str, str] | None = None,
        body: Any = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> Answer:
        """Send it; again after a failure of the way or the server, but for POST. Rate limits are waited for (bounded).

        Raises:
            Unreachable: no answer.
            RateLimited: for longer than we wait.
        """
        headers = self._headers()
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        tries = 1 if method == "POST" else TRIES
        held, repeated, pause = 0.0, False, self._first_pause
        while True:
            held += self._hold()
            tries -= 1
            try:
                response = self._http.request(
                    method, self.url + path, params=params, content=content, headers=headers, timeout=timeout
                )
            except httpx.RequestError as error:
                if not tries:
                    raise self._lost(error, doing) from error
                repeated = repeated or not isinstance(error, _UNSENT)
            else:
                self._note(response)
                if response.status_code == 429:
                    held += self._limited(response, held, doing)
                    tries += 1
                    continue
                if response.status_code < 500 or not tries:
                    return Answer(response, repeated)
                repeated = True
                pause = max(pause, _asked_wait(response))
            self._sleep(min(pause, LONGEST_PAUSE))
            pause *= 2

    def _hold(self) -> float:
        """Wait where the last answer said that nothing more is allowed for now; the seconds waited."""
        wait = self._hold_until - self._now()
        if wait > 0:
            self._sleep(wait)
        return max(wait, 0.0)

    def _limited(self, response: httpx.Response, held: float, doing: str) -> float:
        """Wait as long as a 429 asks for; the seconds waited."""
        wait = max(_retry_after(response, self.server_time()), 1.0)
        if held + wait > LONGEST_LIMIT:
            error = self._error(response, doing)
            error.details["retry_after"] = wait
            raise error
        self._hold_until = 0.0
        self._sleep(wait)
        return wait

    def _note(self, response: httpx.Response) -> None:
        with suppress(ValueError, TypeError):
            date = parsedate_to_datetime(response.headers["date"]) if "date" in response.headers else None
            if date is not None:
                self._date = (date if date.tzinfo else date.replace(tzinfo=UTC), self._now())
        wait = _used_up(response.headers.get("ratelimit", ""))
        self._hold_until = self._now() + min(wait, 60.0) if wait else 0.0

    def _error(self, response: httpx.Response, doing: str) -> RunpodError:
        return explain(response.status_code, response.content, doing, self._key, dict(response.headers))

    def _lost(self, error: httpx.RequestError, doing: str) -> Unreachable:
        why = str(error).replace(self._key, "(key)") or type(error).__name__
        lost = Unreachable(
            f"Runpod: cannot {doing}: no answer from {self.url}: {why}",
            next="check the network (and RUNPOD_API_URL, if it is set), then repeat the command",
        )
        lost.sent = not isinstance(error, _UNSENT)
        return lost

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


def _retry_after(response: httpx.Response, now: datetime | None) -> float:
    """Seconds that a 429 asks to wait: a number, or a time."""
    text = response.headers.get("retry-after", "")
    with suppress(ValueError):
        return max(float(text), 0.0)
    with suppress(ValueError, TypeError):
        return max((parsedate_to_datetime(text) - (now or datetime.now(UTC))).total_seconds(), 0.0)
    return _used_up(response.headers.get("ratelimit", "")) or 5.0


def _asked_wait(response: httpx.Response) -> float:
    """Seconds that a failing server asks to wait; 0 when it does not say."""
    with suppress(ValueError):
        return max(float(response.headers.get("retry-after", "0")), 0.0)
    return 0.0


def _used_up(header: str) -> float:
    """Seconds until a window that is used up begins anew, of ``"minute";r=0;t=12, "hour";r=2800;t=1812``."""
    waits = [0.0]
    for window in _WINDOW.findall(header):
        values = dict(part.strip().split("=", 1) for part in window.split(";") if "=" in part)
        with suppress(KeyError, ValueError):
            if int(values["r"]) <= 0:
                waits.append(float(values["t"]))
    return max(waits)
