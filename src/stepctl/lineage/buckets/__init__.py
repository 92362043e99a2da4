"""Where lineages live: one file per kind behind one Protocol."""

from __future__ import annotations

from pathlib import Path

from stepctl.base.errors import UsageError
from stepctl.lineage.buckets.base import Absent, Bucket, BucketError, Report, Stored
from stepctl.lineage.buckets.directory import DirectoryBucket
from stepctl.lineage.buckets.hf import HubBucket

__all__ = ["Absent", "Bucket", "BucketError", "Stored", "is_hub", "open_bucket"]

_HUB = "hf://buckets/"


def is_hub(url: str) -> bool:
    """Whether the bucket at ``url`` is one of the Hugging Face Hub."""
    return url.startswith(_HUB)


def open_bucket(url: str, token: str | None = None, *, new: bool = False, report: Report | None = None) -> Bucket:
    """The bucket at ``url``: a directory, absolute or relative to the current one, or ``hf://buckets/...``.

    Nothing is read or made yet.

    Args:
        token: for the Hub; without one that which was saved by logging in is used, if any.
        new: a bucket that does not exist is an empty one. A directory always is.
        report: told of the bytes of uploads and downloads.

    Raises:
        UsageError: it is a kind that is not supported.
    """
    if is_hub(url):
        if url.removeprefix(_HUB).strip("/").count("/") < 1:
            raise UsageError(f"the bucket {url} has no name", next="write hf://buckets/NAMESPACE/NAME[/PREFIX]")
        return HubBucket(url.rstrip("/"), token, new=new, report=report)
    if "://" in url:
        raise UsageError(
            f"the bucket {url} cannot be used: that kind of URL is not supported",
            next="give a directory, or hf://buckets/NAMESPACE/NAME[/PREFIX]",
        )
    if not url:
        raise UsageError("the bucket is an empty name", next="give a directory as the bucket")
    return DirectoryBucket(Path(url).expanduser().absolute())
