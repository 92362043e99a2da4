"""Calls of the Hub's client about one storage bucket: bounded in time, repeated where that helps, explained when they
fail. huggingface_hub is imported when the first call is made.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepctl.lineage.buckets import hf_progress
from stepctl.lineage.buckets.base import Absent, BucketError, Report
from stepctl.lineage.buckets.hf_errors import NoBucket, damaged, explain, no_bucket, response_of, retry_after
from stepctl.lineage.buckets.hf_session import Unanswered, bounded, timeout_sec

if TYPE_CHECKING:
    from huggingface_hub import BucketFile, HfApi

T = TypeVar("T")

TRIES = 5
LONGEST_PAUSE_SEC = 120.0
"""If the Hub asks for more, the call fails and says so."""

_ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_XET_TELEMETRY_ENABLED": "false",
    # A chunk from an earlier download would hide that the stored one is damaged.
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
}


class Client:
    """``bucket`` is ``namespace/name``. Without a ``token`` the one that was saved by logging in is used, if any.

    Every method raises BucketError with a ``code`` that begins with ``hub_`` (docs/buckets.md lists them).
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
            raise no_bucket(self.bucket)

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

        def ask() -> list[Any]:
            try:
                return list(self._hub().list_bucket_tree(self.bucket, prefix or None, recursive=recursive))
            except Exception as error:
                response = response_of(error)
                if response is not None and response.headers.get("X-Error-Code") == "EntryNotFound":
                    return []
                raise

        return self._again("list", ask)

    def info(self, paths: Sequence[str]) -> dict[str, BucketFile]:
        """What is stored at those of ``paths`` that exist."""
        if not paths:
            return {}
        found = self._again("look at", lambda: list(self._hub().get_bucket_paths_info(self.bucket, list(paths))))
        return {file.path: file for file in found}

    def add(
        self,
        files: Sequence[tuple[Path | bytes, str]],
        report: Report | None = None,
        stored: Callable[[], bool] = lambda: False,
    ) -> None:
        """Store files; what is at their paths is replaced.

        Args:
            stored: whether all is there, asked after a request without an answer: it may have been done, and doing
                it again would change when a file was stored.
        """
        total = sum(len(source) if isinstance(source, bytes) else source.stat().st_size for source, _ in files)
        add: list[Any] = [(source if isinstance(source, bytes) else str(source), path) for source, path in files]

        def send() -> None:
            try:
                self._hub().batch_bucket_files(self.bucket, add=add)
            except Unanswered:
                if not stored():
                    raise

        with hf_progress.uploads(total, report):
            self._again("write to", send)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist."""
        there = list(self.info(paths))

        def send() -> None:
            nonlocal there
            try:
                self._hub().batch_bucket_files(self.bucket, delete=there)
            except Exception:
                # A request whose answer was lost, or another writer, may have deleted them: then the Hub complains.
                there = list(self.info(there))
                if there:
                    raise

        if there:
            self._again("delete from", send)

    def download(self, files: Sequence[tuple[BucketFile, Path]], report: Report | None = None) -> None:
        """Copy files here. They may arrive cut or changed, or empty if their data is gone: the caller checks them.

        Raises:
            Absent: one was deleted since it was listed.
        """
        wanted: list[Any] = list(files)
        try:
            with hf_progress.downloads(sum(file.size for file, _ in files), report):
                self._again("read from", lambda: self._hub().download_bucket_files(self.bucket, wanted))
        except BucketError as error:
            there = self.info([file.path for file, _ in files])
            if gone := [file.path for file, _ in files if file.path not in there]:
                raise Absent(f"{gone[0]} is gone from bucket {self.bucket}", next="stepctl lineage verify") from error
            if not damaged(error):
                raise
            if len(files) > 1:  # one bad file ends the whole download
                for each in files:
                    self.download([each])
        for _, to in files:
            to.touch()

    # --- how a call is made ---------------------------------------------------------------------------------------

    def _hub(self) -> HfApi:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("HF_XET_CLIENT_CONNECT_TIMEOUT", f"{min(20.0, timeout_sec()) * 1000:.0f}ms")
        os.environ.setdefault("HF_XET_CLIENT_READ_TIMEOUT", f"{timeout_sec() * 1000:.0f}ms")
        from huggingface_hub import HfApi

        if self._api is None:
            self._api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=self._token)
        return self._api

    def _again(self, doing: str, call: Callable[[], T]) -> T:
        """Make a call, and make it again where its failure may pass."""
        with self._said(doing):
            self._hub()
            for tried in range(1, TRIES):
                try:
                    with bounded():
                        return call()
                except Exception as error:
                    pause = self._pause(error, tried)
                    if pause is None:
                        raise
                    self._wait(pause)
            with bounded():
                return call()

    def _pause(self, error: Exception, tried: int) -> float | None:
        """Seconds until it is worth another try, None when it is not. The data plane's client has tried by itself."""
        if isinstance(error, BucketError) or not (isinstance(error, Unanswered) or _some_failed(error)):
            return None
        asked = retry_after(error)
        if asked is not None:
            return asked + self._chance() if asked <= LONGEST_PAUSE_SEC else None
        return min(8.0, 0.5 * 2.0**tried, timeout_sec()) * (0.5 + self._chance() / 2)

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        try:
            yield
        except BucketError:
            raise
        except Exception as error:
            raise explain(error, doing, self.bucket, self._secret()) from error

    def _secret(self) -> str | None:
        """The token that is used: it must be in no message."""
        from huggingface_hub import get_token

        return self._token or get_token()


def _some_failed(error: Exception) -> bool:
    """Whether a batch was carried out in part: the rest may succeed."""
    return type(error).__name__ == "BucketBatchError"
