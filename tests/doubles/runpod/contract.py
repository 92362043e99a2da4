"""The provider's own OpenAPI document, against which requests and answers are checked where it can be found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from .base import PROBLEM, Answer, Request

ROOT = Path(__file__).resolve().parents[3]
VARIABLE = "STEPCTL_RUNPOD_OPENAPI"
NEWER = ("/v2/account/secrets",)
"""Paths that the stored document does not have yet."""


def find_document() -> Path | None:
    """The document named by the variable, or the one beside the checkout; None where there is neither."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    beside = ROOT.parent / "shared/facts/runpod-openapi-v2.json"
    return beside if beside.exists() else None


class Contract:
    """Without a document it finds nothing wrong."""

    def __init__(self, document: Path | None) -> None:
        self.api: Any = None
        if document:
            from openapi_core import Config, OpenAPI

            plain: dict[str, Callable[[bytes], Any]] = {PROBLEM: json.loads, "text/event-stream": bytes.decode}
            config = Config(spec_validator_cls=None, extra_media_type_deserializers=plain)
            self.api = OpenAPI.from_dict(json.loads(document.read_text()), config=config)

    def request(self, request: Request) -> list[str]:
        """What is wrong with a request."""
        if self.api is None or request.path.startswith(NEWER):
            return []
        return _wrong(lambda: self.api.validate_request(_Asked(request)))

    def answer(self, request: Request, answer: Answer) -> list[str]:
        """What is wrong with an answer."""
        if self.api is None or request.exempt or request.path.startswith(NEWER):
            return []
        return _wrong(lambda: self.api.validate_response(_Asked(request), _Answered(answer)))


class _Asked:
    """A request as openapi-core wants it."""

    def __init__(self, request: Request) -> None:
        from openapi_core.datatypes import RequestParameters
        from werkzeug.datastructures import Headers, ImmutableMultiDict

        self.host_url = "https://api.runpod.io"
        self.path, self.method = request.path, request.method.lower()
        self.content_type = _plain_type(request.headers)
        self.body = request.raw or None
        query = ImmutableMultiDict(parse_qsl(request.query_text, keep_blank_values=True))
        # An event's id is not the plain time that the document asks for in Last-Event-ID.
        headers = [(name, value) for name, value in request.headers.items() if name.lower() != "last-event-id"]
        self.parameters = RequestParameters(query, Headers(headers), ImmutableMultiDict())


class _Answered:
    def __init__(self, answer: Answer) -> None:
        from werkzeug.datastructures import Headers

        self.status_code, self.content_type = answer.status, answer.content_type
        self.data = b":" if answer.stream else answer.encoded()
        self.headers = Headers(answer.headers)


def _plain_type(headers: Message[str, str]) -> str:
    return (headers.get("Content-Type") or "").split(";")[0].strip()


def _wrong(check: Any) -> list[str]:
    from openapi_core.exceptions import OpenAPIError

    try:
        check()
    except OpenAPIError as error:
        inner = getattr(error.__cause__, "schema_errors", None) or getattr(error, "schema_errors", None)
        if inner:
            return [f"{type(error).__name__}: {one.json_path}: {one.message}"[:300] for one in inner]
        return [f"{type(error).__name__}: {error.__cause__ or error}"[:300]]
    return []
