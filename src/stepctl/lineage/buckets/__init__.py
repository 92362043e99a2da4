"""Where lineages live: one file per kind behind one Protocol."""

from __future__ import annotations

from pathlib import Path

from stepctl.base.errors import UsageError
from stepctl.lineage.buckets.base import Absent, Bucket, BucketError, Stored
from stepctl.lineage.buckets.directory import DirectoryBucket

__all__ = ["Absent", "Bucket", "BucketError", "Stored", "open_bucket"]


def open_bucket(url: str) -> Bucket:
    """The bucket at ``url``: a directory, absolute or relative to the current one. Nothing is read or made yet.

    Raises:
        UsageError: it is a kind that is not supported.
    """
    if "://" in url:
        raise UsageError(
            f"the bucket {url} cannot be used: a storage bucket on the Hub is not supported, nor any other URL",
            next="give a directory as the bucket",
        )
    if not url:
        raise UsageError("the bucket is an empty name", next="give a directory as the bucket")
    return DirectoryBucket(Path(url).expanduser().absolute())
