"""Settings that name places: buckets, folders, models. All come out absolute, or as what they are on the Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stepctl.config.values import Given, shown

HUB = "hf://"

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_BUCKET = re.compile(rf"hf://buckets/{_PART}/{_PART}(/{_PART})*")
_BUCKET_ID = re.compile(rf"{_PART}/{_PART}")
_BUCKET_EXPECTED = "a directory, or hf://buckets/NAMESPACE/NAME with or without a /PREFIX"


def bucket(given: Given, value: str) -> str:
    """``hf://buckets/...`` as it is, anything else an absolute directory.

    ``BUCKET_ID=namespace/name`` means a bucket of the Hub: other tools use that name so.

    Raises:
        UsageError: it is a URL of another kind.
    """
    if given.variable == "BUCKET_ID" and _BUCKET_ID.fullmatch(value):
        return f"{HUB}buckets/{value}"
    if value.startswith(HUB):
        if not _HUB_BUCKET.fullmatch(value.rstrip("/")):
            raise given.refuse(f"bucket must be {_BUCKET_EXPECTED}; {given.where} says {shown(value)}")
        return value.rstrip("/")
    if "://" in value:
        raise given.refuse(f"bucket must be {_BUCKET_EXPECTED}; {given.where} says {shown(value)}")
    return folder(given, value)


def folder(given: Given, value: str) -> str:
    """An absolute path without links, so that one folder has one name from wherever it was given."""
    return _check(given, os.path.realpath(_expand(given, value)))


def program(given: Given, value: str) -> str:
    """A command's name as it is, a path made absolute. Links stay: a virtual environment's Python is one."""
    if "/" not in value and not value.startswith("~"):
        return value
    return _check(given, os.path.abspath(_expand(given, value)))  # noqa: PTH100  (resolve() follows links)


def model(given: Given, value: str) -> str:
    """An existing folder, or what is written like one (``./``, ``../``, ``/``, ``~``), as absolute path; else a Hub id.

    Raises:
        UsageError: it is a URL.
    """
    if "://" in value:
        raise given.refuse(f"model must be a Hugging Face id or a folder; {given.where} says {shown(value)}")
    written_as_path = value in (".", "..") or value.startswith(("./", "../", "/", "~"))
    return folder(given, value) if written_as_path or _is_folder(_expand(given, value)) else value


def adapter(given: Given, value: str) -> str:
    """A folder as absolute path when there is a slash in it or it starts with a dot or ``~``; else a lineage."""
    return folder(given, value) if "/" in value or value.startswith((".", "~")) else value


def _expand(given: Given, value: str) -> Path:
    try:
        return given.base / Path(value).expanduser()
    except RuntimeError:
        raise given.refuse(f"{given.name} names the home of a user who is not known: {shown(value)}") from None


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name too long for a file system is no folder
        return False


def _check(given: Given, path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise given.refuse(f"{given.name} is in a folder whose name is not UTF-8", next="rename that folder") from None
    return path
