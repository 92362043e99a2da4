"""Sending requests to the provider: what is repeated, what is waited for, and the provider's clock."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import httpx
import msgspec

from stepctl import __version__
from stepctl.base.errors import UsageError
from stepctl.targets.runpod.errors import RunpodError, Unreachable, explain

USER_AGENT = f"stepctl/{__version__}"
TRIES = 5
"""Of a request that may be repeated."""

PATIENCE = 60.0
"""Seconds after which a request is not repeated any more."""

LONGEST_PAUSE = 30.0
LONGEST_LIMIT = 180.0
"""Seconds that one request may be held back by rate limits, all together."""

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
CREATE_TIMEOUT = httpx.Timeout(90.0, connect=10.0)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_WINDOW = re.compile(r'"?\w+"?\s*;[^,]*')


def _client(outside: bool) -> httpx.Client:
    try:
        return httpx.Client(trust_env=outside, verify=outside)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise UsageError(
            f"the proxy of the environment cannot be used: {error}",
            next="set HTTPS_PROXY and ALL_PROXY to an http:// address, or unset them",
            code="bad_proxy",
        ) from error


class Answer(NamedTuple):
    """An answer; ``repeated`` when an earlier try of the same request may have had its effect."""

    response: httpx.Response
    repeated: bool


class Wire:
    """The way to one account. ``first_pause`` is the first wait before a repeat, doubled from one to the next."""

    def __init__(
        self,
        url: str,
        key: str,
        http: httpx.Client | None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
        first_pause: float = 1.0,
    ) -> None:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(
                "the Runpod API key has characters that no key has",
                next="set RUNPOD_API_KEY anew: copy the key alone",
            )
        self.url, self.key, self.now = url.rstrip("/"), key, now
        self._sleep, self.first_pause = sleep, first_pause
        # http is for an address of this network: neither the environment's proxy nor certificates are for that.
        outside = self.url.startswith("https:")
        self.http = http or _client(outside)
        self._date: tuple[datetime, float] | None = None
        self._hold_until = 0.0

    def __repr__(self) -> str:
        return f"Wire({self.url!r})"

    def server_time(self) -> datetime | None:
        """The provider's clock, from the ``Date`` of its last answer; None before the first."""
        if self._date is None:
            return None
        date, at = self._date
        return date + timedelta(seconds=self.now() - at)

    def send(
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
        begun = self.now()
        held, repeated, pause = 0.0, False, self.first_pause
        while True:
            held += self._hold()
            tries -= 1
            try:
                response = self.http.request(
                    method, self.url + path, params=params, content=content, headers=headers, timeout=timeout
                )
            except httpx.RequestError as error:
                if not tries or self.now() - begun > PATIENCE:
                    raise self._lost(error, doing) from error
                repeated = repeated or not isinstance(error, _UNSENT)
            else:
                self._note(response)
                if response.status_code == 429:
                    held += self._limited(response, held, doing)
                    tries += 1
                    continue
                if response.status_code < 500 or not tries or self.now() - begun > PATIENCE:
                    return Answer(response, repeated)
                repeated = True
                pause = max(pause, _asked_wait(response))
            self._sleep(min(pause, LONGEST_PAUSE))
            pause *= 2

    @contextmanager
    def stream(self, path: str, doing: str, params: dict[str, str], *, read: float) -> Iterator[Iterator[str]]:
        """The lines of an event stream, until nothing at all comes for ``read`` seconds, or it is lost."""
        request = self.http.build_request(
            "GET",
            self.url + path,
            params=params,
            headers=self._headers() | {"Accept": "text/event-stream"},
            timeout=httpx.Timeout(30.0, connect=10.0, read=read),
        )
        try:
            response = self.http.send(request, stream=True)
        except httpx.ReadTimeout:
            # A log without a line yet: some servers send nothing at all before the first.
            yield iter(())
            return
        except httpx.RequestError as error:
            raise self._lost(error, doing) from error
        try:
            if not response.is_success:
                response.read()
                raise self.error(response, doing)
            yield _quietly(response.iter_lines())
        finally:
            response.close()

    def _hold(self) -> float:
        """Wait where the last answer said that nothing more is allowed for now; the seconds waited."""
        wait = self._hold_until - self.now()
        if wait > 0:
            self._sleep(wait)
        return max(wait, 0.0)

    def _limited(self, response: httpx.Response, held: float, doing: str) -> float:
        """Wait as long as a 429 asks for; the seconds waited."""
        wait = max(_retry_after(response, self.server_time()), 1.0)
        if held + wait > LONGEST_LIMIT:
            error = self.error(response, doing)
            error.details["retry_after"] = wait
            raise error
        self._hold_until = 0.0
        self._sleep(wait)
        return wait

    def _note(self, response: httpx.Response) -> None:
        with suppress(ValueError, TypeError):
            date = parsedate_to_datetime(response.headers["date"]) if "date" in response.headers else None
            if date is not None:
                self._date = (date if date.tzinfo else date.replace(tzinfo=UTC), self.now())
        wait = _used_up(response.headers.get("ratelimit", ""))
        self._hold_until = self.now() + min(wait, 60.0) if wait else 0.0

    def error(self, response: httpx.Response, doing: str) -> RunpodError:
        """The error for an answer that is no success."""
        return explain(response.status_code, response.content, doing, self.key, dict(response.headers))

    def _lost(self, error: httpx.RequestError, doing: str) -> Unreachable:
        why = str(error).replace(self.key, "(key)") or type(error).__name__
        lost = Unreachable(
            f"Runpod: cannot {doing}: no answer from {self.url}: {why}",
            next="check the network (and RUNPOD_API_URL, if it is set), then repeat the command",
        )
        lost.sent = not isinstance(error, _UNSENT)
        return lost

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "User-Agent": USER_AGENT, "Accept": "application/json"}


def _quietly(lines: Iterator[str]) -> Iterator[str]:
    with suppress(httpx.RequestError):
        yield from lines


def _retry_after(response: httpx.Response, now: datetime | None) -> float:
    """Seconds that a 429 asks to wait: a number, or a time."""
    text = response.headers.get("retry-after", "")
    with suppress(ValueError):
        return _seconds(text)
    with suppress(ValueError, TypeError):
        return max((parsedate_to_datetime(text) - (now or datetime.now(UTC))).total_seconds(), 0.0)
    return _used_up(response.headers.get("ratelimit", "")) or 5.0


def _asked_wait(response: httpx.Response) -> float:
    """Seconds that a failing server asks to wait; 0 when it does not say."""
    with suppress(ValueError):
        return _seconds(response.headers.get("retry-after", "0"))
    return 0.0


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return max(value, 0.0)


def _used_up(header: str) -> float:
    """Seconds until a window that is used up begins anew, of ``"minute";r=0;t=12, "hour";r=2800;t=1812``."""
    waits = [0.0]
    for window in _WINDOW.findall(header):
        values = dict(part.strip().split("=", 1) for part in window.split(";") if "=" in part)
        with suppress(KeyError, ValueError):
            if int(values["r"]) <= 0:
                waits.append(_seconds(values["t"]))
    return max(waits)
