"""Durable files: whoever reads one sees the old content or the new, never a half."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BLOCK = 1 << 20
TEMPORARY = ".tmp-"
"""Every temporary file of ours starts with this, so that leftovers are known as ours."""


def fsync_dir(folder: Path) -> None:
    """Make the names in ``folder`` durable (a rename is not, until its folder is)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(folder: Path) -> None:
    """Create ``folder`` and its parents, durably."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        fsync_dir(path.parent)


def write_temporary(folder: Path, data: bytes, mode: int = 0o644) -> Path:
    """Write ``data`` to a new, fsynced temporary file in ``folder``; the caller renames, links or removes it."""
    path = folder / f"{TEMPORARY}{os.urandom(8).hex()}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: temporary file, fsync, rename, fsync of the folder.

    Raises:
        OSError: the disk is full or the folder cannot be written; ``path`` is as it was.
    """
    temporary = write_temporary(path.parent, data, mode)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_new(path: Path, data: bytes, mode: int = 0o644) -> bool:
    """Create ``path`` with ``data`` unless it exists; whole or not at all.

    Returns:
        False when ``path`` existed already (it is left as it is).
    """
    temporary = write_temporary(path.parent, data, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)
    return True


def blocks(path: Path) -> Iterator[bytes]:
    """The content of ``path`` in blocks of 1 MiB."""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's content."""
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Hex sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def locked(path: Path, mode: int = 0o644) -> Iterator[None]:
    """Hold the lock file ``path``, made when it is not there: one process at a time. Not to be nested."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
