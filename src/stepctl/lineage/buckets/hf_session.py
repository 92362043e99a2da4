"""Single requests of the Hub's client: bounded in time, and not repeated by the client itself.

By itself it waits for ever, sleeps for as long as the Hub likes, and repeats what may have had its effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TIMEOUT_SEC = 60.0
TIMEOUT_VARIABLE = "STEPCTL_HUB_TIMEOUT"
"""Seconds for one request to answer, or to go on answering."""

AGAIN = (408, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""

_LOST = ("TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError")


class Unanswered(Exception):
    """A request that got no answer (``response`` is None), or one that says to try again. It may have been done."""

    def __init__(self, response: Any = None) -> None:
        super().__init__(f"HTTP status {response.status_code}" if response is not None else "no answer")
        self.response = response


def timeout_sec() -> float:
    """Seconds that a request may take."""
    try:
        return max(0.01, float(os.environ.get(TIMEOUT_VARIABLE, "")))
    except ValueError:
        return TIMEOUT_SEC


@contextmanager
def bounded() -> Iterator[None]:
    """While this is open, requests about buckets raise ``Unanswered`` where the client would repeat them."""
    from huggingface_hub import get_session

    session: Any = get_session()
    send = session.send

    def once(request: Any, **options: Any) -> Any:
        if "/buckets/" not in request.url.path:
            return send(request, **options)
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), timeout_sec())
        try:
            response = send(request, **options)
        except Exception as error:
            if {kind.__name__ for kind in type(error).__mro__}.isdisjoint(_LOST):
                raise
            raise Unanswered from error
        if response.status_code in AGAIN:
            raise Unanswered(response)
        return response

    session.send = once
    try:
        yield
    finally:
        session.send = send
