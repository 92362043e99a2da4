"""Bytes on their way to and from the Hub, as somebody wants to hear of them.

The client has no public place to ask for them: for the length of one call its own reporters are replaced. Where a
release of the client has none, nothing is reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepctl.lineage.buckets.base import Report


class _Reporter:
    """Stands for the client's two reporters: only what hf_xet calls, and what the client calls around it."""

    def __init__(self, total: int, report: Report) -> None:
        self._total, self._report = total, report

    def __call__(self, *_: Any, **__: Any) -> _Reporter:
        return self

    def update_progress(self, group: Any, _items: Any = None) -> None:
        done = getattr(group, "total_bytes_completed", None)
        if done is not None:
            self._report(min(int(done), self._total), self._total)

    def reset_for_next_commit(self) -> None:
        """A further batch of the same call."""

    def close(self) -> None:
        """The call is over."""

    def __enter__(self) -> _Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def uploads(total: int, report: Report | None) -> Iterator[None]:
    """Report uploaded bytes of ``total`` while this is open."""
    with _replaced("XetUploadProgressReporter", total, report):
        yield


@contextmanager
def downloads(total: int, report: Report | None) -> Iterator[None]:
    """Report downloaded bytes of ``total`` while this is open."""
    with _replaced("XetDownloadProgressReporter", total, report):
        yield


@contextmanager
def _replaced(name: str, total: int, report: Report | None) -> Iterator[None]:
    try:
        from huggingface_hub.utils import _xet_progress_reporting as module

        utils: Any = importlib.import_module("huggingface_hub.utils")
        theirs, disabled = getattr(module, name), utils.are_progress_bars_disabled
    except (ImportError, AttributeError):
        yield
        return
    reporter = _Reporter(total, report or (lambda done, total: None))
    setattr(module, name, reporter)
    utils.are_progress_bars_disabled = lambda *_: False
    try:
        yield
    finally:
        setattr(module, name, theirs)
        utils.are_progress_bars_disabled = disabled
