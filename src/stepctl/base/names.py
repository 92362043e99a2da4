"""Names that users and files share: run ids, lineage names, UTC times."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime

from stepctl.base.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def utc_now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


def iso(when: datetime) -> str:
    """``when`` as ISO 8601 with microseconds and Z: sorts as text."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_run_id(now: datetime) -> str:
    """A run id that sorts by its millisecond, for example ``20261130T041502917-1f9c0a``."""
    when = now.astimezone(UTC)
    return f"{when:%Y%m%dT%H%M%S}{when.microsecond // 1000:03d}-{os.urandom(3).hex()}"


def check_name(kind: str, name: str) -> str:
    """Return ``name`` when it can be part of a path.

    Raises:
        UsageError: it is empty, too long, or has other characters than letters, digits, dot, dash and underscore.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{kind} {name!r} is not usable as a name",
            next="use 1 to 64 letters, digits, dots, dashes or underscores, starting with a letter or digit",
        )
    return name
