"""The ways in which the provider, or the way to it, says no. The account's key never gets into a text."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stepctl.base.errors import Exit, StepctlError
from stepctl.targets.runpod.records import Problem

_STOCK = re.compile(
    r"no (?:longer )?(?:any )?(?:available )?(?:instances?|gpus?|machines?|pods?|capacity)\b"
    r"|not (?:any |enough )?(?:instances?|gpus?|machines?|capacity|free gpus?)\b.{0,20}(?:available|left|free)?"
    r"|out of (?:stock|capacity)|insufficient capacity|could not be placed|capacity is exhausted",
    re.IGNORECASE,
)
_EDGE = re.compile(rb"error[ _]?code\W{0,5}1010\b|cloudflare.*\b1010\b", re.IGNORECASE | re.DOTALL)
_LONGEST = 300


class RunpodError(StepctlError):
    """A failure of the provider, or on the way to it; ``status`` is that of its answer, None where there was none."""

    code = "runpod_failed"
    status: int | None = None


class BadKey(RunpodError):
    """The key is not accepted (401), or may not do this (403)."""

    code = "runpod_key"


class Blocked(RunpodError):
    """The provider's edge turned the program away before its API saw the request (403, error 1010)."""

    code = "runpod_blocked"


class NoBalance(RunpodError):
    """The account has no money left (402)."""

    code = "runpod_balance"


class NoStock(RunpodError):
    """There is no machine of that type now; nothing was made."""

    code = "runpod_no_stock"


class Rejected(RunpodError):
    """The request breaks a rule, or names what is not there: repeated, it would be refused again."""

    code = "runpod_rejected"


class RetiredApi(RunpodError):
    """This version of the API is no longer served (410)."""

    code = "runpod_api_version"


class RateLimited(RunpodError):
    """Too many requests (429), for longer than we wait."""

    code = "runpod_rate_limit"


class Unreachable(RunpodError):
    """No answer, or only failures of the server, however often it was asked.

    ``sent`` is False where the request surely never left, so that it had no effect.
    """

    code = "runpod_unreachable"
    sent: bool = True


class OddAnswer(RunpodError):
    """An answer that is none of the API's."""

    code = "runpod_answer"


class Ambiguous(RunpodError):
    """A create whose outcome is not known: there may be a pod. It must be looked for, never asked for again."""

    code = "create_unresolved"


class NoCapacity(RunpodError):
    """No type that was tried is to be had; nothing was rented."""

    code = "no_capacity"


class PriceAbove(RunpodError):
    """Whatever is to be had costs more than the cap of the price."""

    exit_code = Exit.CAPPED
    code = "price_above"


class PodAlive(RunpodError):
    """It could not be confirmed that a pod is gone: it may still cost money."""

    exit_code = Exit.POD_ALIVE
    code = "pod_alive"


def words(body: bytes) -> str:
    """What an error's body says in one line, at most 300 characters; empty where it says nothing."""
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except msgspec.MsgspecError:
        return ""
    listed = problem.errors if isinstance(problem.errors, list) else []
    said = [problem.detail or problem.title or "", *_texts(problem.error), *_texts(problem.message)]
    said += [text for each in listed for text in _texts(each)]
    line = " ".join("; ".join(dict.fromkeys(text for text in said if text)).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key in ("message", "detail") for text in _texts(value.get(key))]
    return []


def says_no_stock(text: str) -> bool:
    """Whether a refusal means that there is no machine now: only its words tell, it has no code."""
    return bool(_STOCK.search(text))


def explain(status: int, body: bytes, doing: str, key: str, headers: dict[str, str] | None = None) -> RunpodError:
    """The error that a person reads for an answer that is no success.

    Args:
        status: of the answer.
        body: of the answer.
        doing: what was asked for, as it goes on after "cannot": ``list the pods``.
        key: the account's key, which must not be shown.
        headers: of the answer, names in lower case.
    """
    said = words(body).replace(key, "(key)")
    failed = f"Runpod: cannot {doing}"
    told = f": {said}" if said else ""
    # An identifier of the provider's, by which its support finds the request.
    request = (headers or {}).get("x-request-id", "")
    if status == 403 and _EDGE.search(body):
        error: RunpodError = Blocked(
            f"{failed}: the provider's edge turned this program away (403, error 1010) before its API saw the request; "
            "that is about the program's name or this network, not about your key",
            safe="nothing was changed",
            next="try from another network (no VPN or proxy); if it stays so, report it to the makers of stepctl",
        )
    else:
        error = _refusal(status, failed, told) or _failure(status, failed, told)
    error.status = status
    error.details = {"status": status} | ({"request_id": request} if request else {})
    return error


_CORRECT = "correct what it names in the target's settings in stepctl.toml, then repeat the command"
_REFUSALS: dict[int, tuple[type[RunpodError], str, str]] = {
    401: (
        BadKey,
        "the API key is not accepted",
        "set RUNPOD_API_KEY to a valid key (https://console.runpod.io/user/settings, API keys)",
    ),
    403: (
        BadKey,
        "the API key may not do this",
        "use a key that may read and write pods (Restricted keys need Read/Write for pods)",
    ),
    402: (
        NoBalance,
        "the account's balance does not suffice",
        "add credit to the Runpod account, then repeat the command",
    ),
    410: (
        RetiredApi,
        "this version of the API is no longer served",
        "install a newer stepctl; where RUNPOD_API_URL or api_url is set, it must end in /v2",
    ),
    429: (
        RateLimited,
        "too many requests",
        "wait some minutes, then repeat the command; other programs with the same account count as well",
    ),
} | dict.fromkeys((400, 404, 405, 409, 413, 415, 422), (Rejected, "it was refused", _CORRECT))


def _refusal(status: int, failed: str, told: str) -> RunpodError | None:
    if status not in _REFUSALS:
        return None
    kind, what, remedy = _REFUSALS[status]
    return kind(f"{failed}: {what} ({status}){told}", safe="nothing was changed", next=remedy)


def _failure(status: int, failed: str, told: str) -> RunpodError:
    if status >= 500:
        return Unreachable(
            f"{failed}: its server failed ({status}){told}",
            next="repeat the command later; https://uptime.runpod.io says whether the provider has trouble",
        )
    return OddAnswer(
        f"{failed}: an answer that its API does not give ({status}){told}",
        next="check RUNPOD_API_URL and api_url, and whether a proxy stands between",
    )
