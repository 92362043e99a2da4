"""Calls of the Hub's client about one storage bucket: bounded in time, repeated where that helps, explained when they
fail. huggingface_hub is imported when the first call is made.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepctl.lineage.buckets import hf_progress
from stepctl.lineage.buckets.base import Absent, BucketError, Report

if TYPE_CHECKING:
    from huggingface_hub import BucketFile, HfApi

T = TypeVar("T")

REQUEST_SEC = 60.0
"""For one request to answer, or to go on answering. The client itself would wait for ever."""

TRIES = 5
_AGAIN = (408, 429, 500, 502, 503, 504)
_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_XET_TELEMETRY_ENABLED": "false",
    # A chunk from an earlier download would hide that the stored one is damaged.
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
    "HF_XET_CLIENT_CONNECT_TIMEOUT": "20s",
    "HF_XET_CLIENT_READ_TIMEOUT": f"{REQUEST_SEC:.0f}s",
}


class NoBucket(BucketError):
    """The bucket does not exist, or the token may not see it: the Hub says the same of both."""

    code = "hub_no_bucket"


class Client:
    """``bucket`` is ``namespace/name``. Without a ``token`` the one that was saved by logging in is used, if any.

    Every method raises BucketError; its ``code`` is one of ``hub_token``, ``hub_no_bucket``, ``hub_permission``,
    ``hub_quota``, ``hub_unreachable`` and ``hub_failed``.
    """

    def __init__(
        self,
        bucket: str,
        token: str | None,
        *,
        wait: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.bucket = bucket
        self._token, self._wait, self._chance = token, wait, chance
        self._api: HfApi | None = None
        self._known = False

    # --- the bucket itself ----------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the bucket is there and the token may see it; asked once, and first: a bad token is said as such."""
        if not self._known:
            try:
                self._again("look for", lambda: self._hub().bucket_info(self.bucket))
            except NoBucket:
                return False
            self._known = True
        return True

    def require(self) -> None:
        """Raise unless the bucket is there.

        Raises:
            NoBucket: it is not.
        """
        if not self.exists():
            raise _no_bucket(self.bucket)

    def create(self) -> None:
        """Make the bucket, private, unless it exists."""
        self._again("create", lambda: self._hub().create_bucket(self.bucket, private=True, exist_ok=True))
        self._known = True

    def check_write(self) -> None:
        """Raise unless the token may write: the Hub is asked for leave to upload, and nothing is uploaded."""

        def ask() -> None:
            from huggingface_hub import get_session
            from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

            hub = self._hub()
            headers = build_hf_headers(token=hub.token)
            url = f"{hub.endpoint}/api/buckets/{self.bucket}/xet-write-token"
            hf_raise_for_status(get_session().get(url, headers=headers))

        self._again("write to", ask)

    # --- files ----------------------------------------------------------------------------------------------------

    def tree(self, prefix: str, *, recursive: bool) -> list[Any]:
        """Files and folders below ``prefix`` (lexically: ``a`` also finds ``ab``)."""
        return self._again(
            "list",
            lambda: list(self._hub().list_bucket_tree(self.bucket, prefix or None, recursive=recursive)),
        )

    def info(self, paths: Sequence[str]) -> dict[str, BucketFile]:
        """What is stored at those of ``paths`` that exist."""
        if not paths:
            return {}
        found = self._again("look at", lambda: list(self._hub().get_bucket_paths_info(self.bucket, list(paths))))
        return {file.path: file for file in found}

    def add(self, files: Sequence[tuple[Path | bytes, str]], report: Report) -> None:
        """Store files; what is at their paths is replaced."""
        total = sum(len(source) if isinstance(source, bytes) else source.stat().st_size for source, _ in files)
        with hf_progress.uploads(total, report):
            add: list[Any] = [(source if isinstance(source, bytes) else str(source), path) for source, path in files]
            self._once("write to", lambda: self._hub().batch_bucket_files(self.bucket, add=add))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist."""
        there = list(self.info(paths))
        if not there:
            return
        try:
            self._once("delete from", lambda: self._hub().batch_bucket_files(self.bucket, delete=there))
        except BucketError:
            # A repeated request finds what the first one has deleted missing, and says so.
            if self.info(there):
                raise

    def download(self, files: Sequence[tuple[BucketFile, Path]], report: Report) -> None:
        """Copy files here. They may arrive cut or changed, or empty if their data is gone: the caller checks them.

        Raises:
            Absent: one was deleted since it was listed.
        """
        wanted: list[Any] = list(files)
        try:
            with hf_progress.downloads(sum(file.size for file, _ in files), report), self._said("read from"):
                self._hub().download_bucket_files(self.bucket, wanted)
        except BucketError as error:
            there = self.info([file.path for file, _ in files])
            if gone := [file.path for file, _ in files if file.path not in there]:
                raise Absent(f"{gone[0]} is gone from bucket {self.bucket}", next="stepctl lineage verify") from error
            if not _damaged(error):
                raise
        for _, to in files:
            to.touch()

    # --- how a call is made ---------------------------------------------------------------------------------------

    def _hub(self) -> HfApi:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from huggingface_hub import HfApi, get_session

        if self._api is None:
            self._api = HfApi(token=self._token)
        # The session is one for the process, and may have been made anew.
        get_session().timeout = REQUEST_SEC
        return self._api

    def _once(self, doing: str, call: Callable[[], T]) -> T:
        """For what the client repeats by itself."""
        with self._said(doing):
            return call()

    def _again(self, doing: str, call: Callable[[], T]) -> T:
        """For what can be repeated and the client does not repeat, or not for every failure."""
        with self._said(doing):
            for tried in range(1, TRIES):
                try:
                    return call()
                except Exception as error:
                    pause = _pause(error, tried, self._chance())
                    if pause is None:
                        raise
                    self._wait(pause)
            return call()

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except BucketError:
            raise
        except Exception as error:
            raise explain(error, doing, self.bucket) from error


def _pause(error: Exception, tried: int, chance: float) -> float | None:
    """Seconds until it is worth another try, None when it is not."""
    response = _response(error)
    if response is None:
        return _backoff(tried, chance) if _network(error) and not _offline(error) else None
    if response.status_code not in _AGAIN:
        return None
    asked = str(response.headers.get("Retry-After", ""))
    return min(float(asked), 60.0) if asked.isdigit() else _backoff(tried, chance)


def _backoff(tried: int, chance: float) -> float:
    return min(8.0, 0.5 * 2.0**tried) * (0.5 + chance / 2)


def _causes(error: BaseException) -> Iterable[BaseException]:
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        seen.append(at)
        at = at.__cause__ or at.__context__
    return seen


def _response(error: BaseException) -> Any:
    return next((r for e in _causes(error) if (r := getattr(e, "response", None)) is not None), None)


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error. The data plane's client only writes it into its message."""
    response = _response(error)
    if response is not None:
        return int(response.status_code)
    for each in _causes(error):
        found = re.search(r"\b(?:HTTP |status(?: code)?:? ?\(?|error \(|\()(4\d\d|5\d\d)\b", str(each))
        if found:
            return int(found[1])
    return None


def _damaged(error: BaseException) -> bool:
    """Whether the data plane says that a file's data is not there, or not of the size that is listed."""
    found = [each for each in _causes(error) if type(each) is RuntimeError]
    return any(_status(each) == 404 or "size mismatch" in str(each).lower() for each in found)


def _network(error: BaseException) -> bool:
    names = {kind.__name__ for each in _causes(error) for kind in type(each).__mro__}
    return bool(names & {"ConnectionError", "TimeoutError", "NetworkError", "TimeoutException", "TransportError"})


def _offline(error: BaseException) -> bool:
    return any(type(each).__name__ == "OfflineModeIsEnabled" for each in _causes(error))


def _no_bucket(bucket: str) -> NoBucket:
    return NoBucket(
        f"there is no bucket {bucket} on the Hub, or the token may not see it",
        safe="nothing was changed",
        next="check the name; for a private bucket set HF_TOKEN to a token that may read it; "
        "stepctl train creates a bucket in your own namespace",
    )


def explain(error: Exception, doing: str, bucket: str) -> BucketError:
    """Which of the ways to fail this is, in a user's words."""
    status, text = _status(error), " ".join(str(each) for each in _causes(error)).lower()
    failed = f"cannot {doing} bucket {bucket} on the Hub"
    if status == 404:
        return _no_bucket(bucket)
    if status == 401:
        return BucketError(
            f"{failed}: the Hub refuses the token (401)",
            safe="nothing was changed",
            next="set HF_TOKEN to a valid token (or log in again); a new one is made in your account's settings",
            code="hub_token",
        )
    if status in (402, 413, 507) or "quota" in text or "storage limit" in text:
        return BucketError(
            f"{failed}: its owner's storage is full",
            safe="what is stored is as it was",
            next="delete something there, or raise the storage limit of the account, then repeat the command",
            code="hub_quota",
        )
    if status == 403:
        return BucketError(
            f"{failed}: the token has no permission for that (403)",
            safe="nothing was changed",
            next=f"set HF_TOKEN to a token with write permission for the buckets of {bucket.partition('/')[0]}",
            code="hub_permission",
        )
    return _no_answer(error, failed, reached=status is not None or not _network(error))


def _no_answer(error: Exception, failed: str, *, reached: bool) -> BucketError:
    if _offline(error):
        return BucketError(f"{failed}: HF_HUB_OFFLINE is set", next="unset HF_HUB_OFFLINE", code="hub_unreachable")
    if not reached:
        return BucketError(
            f"{failed}: it cannot be reached ({_first_line(error)})",
            safe="what is stored is as it was",
            next="check the connection (and HF_ENDPOINT, if it is set), then repeat the command",
            code="hub_unreachable",
        )
    return BucketError(
        f"{failed}: {_first_line(error)}",
        safe="what is stored is as it was",
        next="repeat the command; if it stays so, look whether the Hub has trouble",
        code="hub_failed",
    )


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
