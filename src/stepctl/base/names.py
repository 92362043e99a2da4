"""Names that users and files share: run ids, lineage names, UTC times."""

from __future__ import annotations

import re
import secrets
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
    """A sortable run id, for example ``20261130T041502-1f9c0a``."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


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
