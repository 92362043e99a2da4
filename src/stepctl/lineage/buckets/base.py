"""What a place that stores lineages can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from stepctl.base.errors import StepctlError
from stepctl.lineage.records import FileEntry

Report = Callable[[int, int], None]
"""Told of a transfer: bytes done, bytes in all."""

LOCK_WAIT_SEC = 600.0
"""A commit of a large checkpoint holds the lock as long as it copies."""


class BucketError(StepctlError):
    """The storage refused or failed."""

    code = "bucket"


class Absent(BucketError):
    """No such file."""

    code = "absent"


class Changed(BucketError):
    """A file arrives otherwise than the storage says it has it: its data is damaged there."""

    code = "damaged_file"


class Stored(Struct, frozen=True, kw_only=True):
    """One stored file: path relative to the bucket, size in bytes, ``stored_at`` in nanoseconds since the epoch.

    ``plain`` is False for what is not a regular file (a link): it is listed, never read or followed. An empty folder,
    where a kind has them, is listed with a trailing slash.
    """

    path: str
    size: int
    stored_at: int
    plain: bool = True


class Bucket(Protocol):
    """Files by path, relative to the bucket, with forward slashes.

    Every method raises BucketError, saying what failed and what to do, and leaves no half-written file under its
    final name. Nothing here is a transaction over several files.
    """

    @property
    def url(self) -> str:
        """As a person writes it."""

    @property
    def exclusive(self) -> bool:
        """Whether ``put_new`` is decided by the storage itself, so that of two writers exactly one succeeds.

        Then claims decide between siblings. Where it is not so, the storage's own ``stored_at`` and the name decide,
        and no claim is made.
        """

    def uncached(self) -> Bucket:
        """The same bucket, of which every byte is read from the storage itself, whatever copies are here."""

    def list_folders(self) -> Sequence[str]:
        """Names of the folders at the top of the bucket, sorted, links to folders among them; none when it is empty.

        One listing of the top is enough: nothing below it is read.
        """

    def list_files(self, prefix: str) -> Sequence[Stored]:
        """All files below the folder ``prefix``, sorted by path; none when it does not exist."""

    def read(self, path: str) -> bytes:
        """The content of a small file.

        Raises:
            Absent: it does not exist.
            Changed: the storage itself says that its content was another one.
        """

    def sha256(self, path: str) -> str:
        """Hex sha256 of the stored bytes, read now.

        Raises:
            Absent: it does not exist.
        """

    def fetch(self, prefix: str, paths: Sequence[str], to: Path) -> None:
        """Copy ``paths``, relative to ``prefix``, into the folder ``to``; each appears whole, its content unchecked.

        Raises:
            Absent: one does not exist.
        """

    def put_files(self, prefix: str, folder: Path, entries: Sequence[FileEntry]) -> None:
        """Store files of ``folder`` below ``prefix``, durably; what is there already with the right content stays.

        Raises:
            StepctlError: a local file is not what its entry says, or what was stored is not.
        """

    def put_new(self, path: str, data: bytes) -> bool:
        """Store a small file unless it exists, durably, whole or not at all; False when it existed."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files in this order, durably, and the folders that become empty; absent ones are passed over."""

    def lock(self, lineage: str, wait_sec: float = LOCK_WAIT_SEC) -> AbstractContextManager[None]:
        """Keep other writers of this machine out. It only saves them from forking: the result is right without it.

        Raises:
            LineageConflict: another process held it for ``wait_sec`` seconds.
        """

    def check_writable(self) -> None:
        """Raise unless files can be stored here now."""


def is_safe(path: str) -> bool:
    """Whether ``path`` is relative, stays inside its folder and means the same on every system."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not any(c in path for c in "\\\0\n")
