"""Which of the ways to fail a failure of the Hub's client is, in a user's words. No token gets into them."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Any

from stepctl.lineage.buckets.base import BucketError
from stepctl.lineage.buckets.hf_session import timeout_sec

_STORED = "what is stored is as it was"
# The data plane's client only writes the status into its message.
_STATUS = re.compile(r"HTTP status (?:\w+ error )?\(?(\d{3})\b")
_FULL = re.compile(r"quota|storage (?:limit|is full)|insufficient storage", re.IGNORECASE)
_LOST = re.compile(r"error sending request|error decoding response|timed? ?out|connection|no answer", re.IGNORECASE)
_URL = re.compile(r"(https?://[^\s?'\")]+)(\?[^\s'\")]*)?")
_SECRET = re.compile(r"hf_[A-Za-z0-9_]{4,}|(?<=Bearer )[^\s'\"]+|xet:[^\s'\"]+")


class NoBucket(BucketError):
    """The bucket does not exist, or the token may not see it: the Hub says the same of both."""

    code = "hub_no_bucket"


def no_bucket(bucket: str) -> NoBucket:
    """The error for a bucket that is not there."""
    return NoBucket(
        f"there is no bucket {bucket} on the Hub, or the token may not see it",
        safe="nothing was changed",
        next="check the name; for a private bucket set HF_TOKEN to a token that may read it; "
        "stepctl train creates a bucket in a namespace that the token may write to",
    )


def causes(error: BaseException) -> Sequence[BaseException]:
    """An error and what it came from."""
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        at = at.__cause__ or at.__context__
    return seen


def response_of(error: BaseException) -> Any:
    """The Hub's answer behind an error, or None."""
    return next((r for e in causes(error) if (r := getattr(e, "response", None)) is not None), None)


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, or None."""
    response = response_of(error)
    if response is not None:
        return int(response.status_code)
    return next((int(found[1]) for each in causes(error) if (found := _STATUS.search(str(each)))), None)


def damaged(error: BaseException) -> bool:
    """Whether the data plane says that a file's data is not there, or not of the size that is listed."""
    found = [each for each in causes(error) if type(each) is RuntimeError]
    return any(status_of(each) in (404, 416) or "size mismatch" in str(each).lower() for each in found)


def clean(text: str, token: str | None) -> str:
    """``text`` without the token, and without what signs a URL."""
    for secret in {token, (token or "").strip()} - {None, ""}:
        text = text.replace(str(secret), "(token)")
    return _SECRET.sub("(token)", _URL.sub(r"\1", text))


def explain(error: Exception, doing: str, bucket: str, token: str | None) -> BucketError:
    """The error that a person reads; its codes are listed in docs/buckets.md."""
    failed = f"cannot {doing} bucket {bucket} on the Hub"
    status = status_of(error)
    return (
        _here(error, failed)
        or _refused(error, status, failed, bucket, token)
        or _trouble(error, status, failed)
        or _lost(error, status, failed, token)
        or BucketError(
            f"{failed}: {_first_line(error, token)}",
            safe=_STORED,
            next="repeat the command; if it stays so, look whether the Hub has trouble",
            code="hub_failed",
        )
    )


def _here(error: Exception, failed: str) -> BucketError | None:
    """What is wrong on this machine."""
    chain = causes(error)
    names = {type(each).__name__ for each in chain}
    if "OfflineModeIsEnabled" in names:
        return BucketError(
            f"{failed}: HF_HUB_OFFLINE is set", safe=_STORED, next="unset HF_HUB_OFFLINE", code="hub_offline"
        )
    if names & {"LocalProtocolError", "UnicodeEncodeError"}:
        return BucketError(
            f"{failed}: the token has characters that no token has",
            safe=_STORED,
            next="set HF_TOKEN anew: copy the token alone",
            code="hub_token",
        )
    full = any(getattr(each, "errno", None) in (errno.ENOSPC, errno.EDQUOT) for each in chain)
    if full or any("No space left on device" in str(each) for each in chain):
        return BucketError(
            f"{failed}: the disk of this machine is full",
            safe=_STORED,
            next="free some space in the temporary folder (TMPDIR) and in the project, then repeat the command",
            code="disk_full",
        )
    return None


def _refused(error: Exception, status: int | None, failed: str, bucket: str, token: str | None) -> BucketError | None:
    """What the Hub does not allow."""
    if status in (402, 413, 507) or _FULL.search(_words(error, bucket)):
        return BucketError(
            f"{failed}: its owner's storage is full",
            safe=_STORED,
            next="delete something there, or raise the storage limit of the account, then repeat the command",
            code="hub_quota",
        )
    if not _of_control(error):
        return None
    if status == 401:
        what = "the Hub refuses the token (401)" if token else "it wants a token (401), and HF_TOKEN is not set"
        return BucketError(
            f"{failed}: {what}",
            safe=_STORED,
            next="set HF_TOKEN to a valid token (or log in again); a new one is made in your account's settings",
            code="hub_token",
        )
    if status == 403:
        return BucketError(
            f"{failed}: the token has no permission for that (403)",
            safe=_STORED,
            next=f"set HF_TOKEN to a token with write permission for the buckets of {bucket.partition('/')[0]}",
            code="hub_permission",
        )
    return no_bucket(bucket) if status == 404 else None


def _trouble(error: Exception, status: int | None, failed: str) -> BucketError | None:
    """What passes by itself."""
    if status == 429:
        pause = retry_after(error)
        when = f"in {pause:.0f} seconds" if pause else "in some minutes"
        return BucketError(
            f"{failed}: too many requests (429)",
            safe=_STORED,
            next=f"repeat the command {when}",
            code="hub_rate_limit",
        )
    if status is not None and (status >= 500 or status == 408):
        return BucketError(
            f"{failed}: the Hub itself has failed ({status})",
            safe=_STORED,
            next="repeat the command later; https://status.huggingface.co says whether the Hub has trouble",
            code="hub_server",
        )
    return None


def _lost(error: Exception, status: int | None, failed: str, token: str | None) -> BucketError | None:
    """What never reached the Hub, or got no answer."""
    chain = causes(error)
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    if "TimeoutException" in names or "TimeoutError" in names:
        return BucketError(
            f"{failed}: it did not answer within {timeout_sec():g} seconds",
            safe=_STORED,
            next="check the connection, then repeat the command; STEPCTL_HUB_TIMEOUT=SECONDS waits longer",
            code="hub_timeout",
        )
    network = names & {"ConnectionError", "NetworkError", "TransportError", "Unanswered"}
    if status is None and (network or any(_LOST.search(str(each)) for each in chain)):
        return BucketError(
            f"{failed}: it cannot be reached, or stopped answering ({_first_line(chain[-1], token)})",
            safe=_STORED,
            next="check the connection (and HF_ENDPOINT, if it is set), then repeat the command",
            code="hub_unreachable",
        )
    return None


def retry_after(error: BaseException) -> float | None:
    """Seconds that the Hub asks to wait, if it does."""
    response = response_of(error)
    if response is None:
        return None
    asked = str(response.headers.get("Retry-After", "")).strip()
    if asked.isdigit():
        return float(asked)
    reset = re.search(r"\br=0\b.*?\bt=(\d+)", str(response.headers.get("RateLimit", "")))
    return float(reset[1]) if reset else None


def _of_control(error: Exception) -> bool:
    """Whether the Hub's own interface answered, and not its data plane."""
    return response_of(error) is not None or any("/api/" in str(each) for each in causes(error))


def _words(error: Exception, bucket: str) -> str:
    """What the Hub itself says; names in addresses say nothing."""
    response = response_of(error)
    parts = [str(each) for each in causes(error)]
    if response is not None:
        parts.append(str(response.headers.get("X-Error-Message", "")))
    parts += [str(each) for e in causes(error) for each in getattr(e, "failures", [])]
    return _URL.sub("", " ".join(parts)).replace(bucket, "")


def _first_line(error: BaseException, token: str | None) -> str:
    line = clean((str(error).strip().splitlines() or [""])[0], token)[:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
