"""A directory as a bucket. Links inside it are never followed; the directory itself may be reached through one."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stepctl.base.errors import StepctlError
from stepctl.base.files import BLOCK, TEMPORARY, fsync_dir, make_dirs, write_new
from stepctl.lineage.buckets.base import LOCK_WAIT_SEC, Absent, BucketError, Stored, is_safe
from stepctl.lineage.buckets.locks import wait_for
from stepctl.lineage.records import FileEntry

LOCK = ".lock"
_KEPT_LEVELS = 2
"""``<lineage>/<kind>`` stays when it becomes empty: another writer may be about to use it."""


class DirectoryBucket:
    """See :class:`stepctl.lineage.buckets.base.Bucket`. The order among siblings is the exclusive claim's."""

    exclusive = True

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        return str(self._root)

    def uncached(self) -> DirectoryBucket:
        return self

    def list_folders(self) -> list[str]:
        with self._said("list", "."):
            try:
                with os.scandir(self._root) as found:
                    return sorted(entry.name for entry in found if entry.is_dir())
            except FileNotFoundError:
                return []

    def list_files(self, prefix: str) -> list[Stored]:
        with self._said("list", prefix):
            try:
                folder = self._at(prefix)
                return sorted(self._walk(folder, prefix), key=lambda stored: stored.path)
            except FileNotFoundError:
                return []

    def read(self, path: str) -> bytes:
        with self._said("read", path), self._open(path) as file:
            return file.read()

    def sha256(self, path: str) -> str:
        digest = hashlib.sha256()
        with self._said("read", path), self._open(path) as file:
            while block := file.read(BLOCK):
                digest.update(block)
        return digest.hexdigest()

    def fetch(self, prefix: str, paths: Sequence[str], to: Path) -> None:
        for path in paths:
            target = to / path
            with self._said("copy", f"{prefix}/{path}"), self._open(f"{prefix}/{path}") as file:
                make_dirs(target.parent)
                temporary, _, _ = _copy(file, target.parent)
                _rename(temporary, target)
        for folder in {(to / path).parent for path in paths}:
            fsync_dir(folder)

    def put_files(self, prefix: str, folder: Path, entries: Sequence[FileEntry]) -> None:
        with self._said("write", prefix):
            make_dirs(self._at(prefix))
        for entry in entries:
            path = f"{prefix}/{entry.path}"
            if not self._holds(path, entry):
                self._put_file(path, folder / entry.path, entry)
        with self._said("write", prefix):
            for parent in {self._at(f"{prefix}/{entry.path}").parent for entry in entries} | {self._at(prefix)}:
                self._sync_up(parent)

    def put_new(self, path: str, data: bytes) -> bool:
        with self._said("write", path):
            target = self._at(path)
            make_dirs(target.parent)
            new = write_new(target, data)
            # Also when it existed: the writer that made it may have died before its name was durable.
            self._sync_up(target.parent)
            return new

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with self._said("delete", path):
                target = self._at(path.rstrip("/"), link_at_end=True)
                try:
                    if not path.endswith("/"):
                        target.unlink(missing_ok=True)
                    self._drop_empty(target if path.endswith("/") else target.parent)
                except FileNotFoundError:
                    continue

    @contextmanager
    def lock(self, lineage: str, wait_sec: float = LOCK_WAIT_SEC) -> Iterator[None]:
        path = f"{lineage}/{LOCK}"
        with self._said("lock", path):
            target = self._at(path)
            make_dirs(target.parent)
            fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            with self._said("lock", path):
                wait_for(fd, f"lineage {lineage} in {self.url}", wait_sec)
            yield
        finally:
            os.close(fd)

    def check_writable(self) -> None:
        with self._said("write to", "."):
            make_dirs(self._root)
            probe = self._root / f"{TEMPORARY}{secrets.token_hex(8)}"
            try:
                if not write_new(probe, b""):
                    raise BucketError(f"{self.url} cannot create new files")
            finally:
                probe.unlink(missing_ok=True)

    @contextmanager
    def _said(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise Absent(f"{path} does not exist in {self.url}", next="stepctl lineage verify") from error
        except OSError as error:
            raise BucketError(
                f"cannot {doing} {path} in {self.url}: {os.strerror(error.errno) if error.errno else error}",
                next=_hint(error.errno),
            ) from error

    def _at(self, path: str, *, link_at_end: bool = False) -> Path:
        """``path`` below the root, none of its parts a link (the last may be one if ``link_at_end``)."""
        if not is_safe(path):
            raise BucketError(f"{path!r} is not a path inside the bucket {self.url}")
        at = self._root
        parts = path.split("/")
        for number, part in enumerate(parts, start=1):
            at = at / part
            if at.is_symlink() and not (link_at_end and number == len(parts)):
                raise BucketError(
                    f"{at} is a link; links inside a bucket are not followed",
                    next="put the real folder or file in its place, or give the folder it points to as the bucket",
                    code="link_in_bucket",
                )
        return at

    def _open(self, path: str) -> BinaryIO:
        # Not blocking: a named pipe in the place of a file must not hang the reader.
        fd = os.open(self._at(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise BucketError(f"{path} in {self.url} is not a file")
        return os.fdopen(fd, "rb")

    def _walk(self, folder: Path, prefix: str) -> Iterator[Stored]:
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            path = f"{prefix}/{entry.name}"
            try:
                about = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(folder / entry.name, path)
                elif entry.name != LOCK:
                    plain = stat.S_ISREG(about.st_mode)
                    yield Stored(path=path, size=about.st_size, stored_at=about.st_mtime_ns, plain=plain)
            except FileNotFoundError:
                continue
        if not entries and prefix.count("/") >= _KEPT_LEVELS:
            yield Stored(path=f"{prefix}/", size=0, stored_at=folder.stat().st_mtime_ns)

    def _holds(self, path: str, entry: FileEntry) -> bool:
        with self._said("read", path):
            try:
                about = self._at(path).lstat()
            except FileNotFoundError:
                return False
        return stat.S_ISREG(about.st_mode) and about.st_size == entry.size and self.sha256(path) == entry.sha256

    def _put_file(self, path: str, source: Path, entry: FileEntry) -> None:
        with self._said("write", path):
            target = self._at(path)
            make_dirs(target.parent)
            with _open_source(source, entry) as file:
                temporary, size, sha256 = _copy(file, target.parent)
            if (size, sha256) != (entry.size, entry.sha256):
                temporary.unlink(missing_ok=True)
                raise _changed(source, f"has {size} bytes and sha256 {sha256}", entry)
            _rename(temporary, target)
        if not self._holds(path, entry):
            raise BucketError(
                f"{path} was written to {self.url}, but what is read back is different", next="check that disk"
            )

    def _sync_up(self, folder: Path) -> None:
        """Make the names from ``folder`` up to the root durable, whoever made them."""
        while folder != self._root:
            fsync_dir(folder)
            folder = folder.parent
        fsync_dir(folder)

    def _drop_empty(self, folder: Path) -> None:
        fsync_dir(folder)
        while len(folder.relative_to(self._root).parts) > _KEPT_LEVELS:
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    return
                raise
            folder = folder.parent
            fsync_dir(folder)


def _open_source(source: Path, entry: FileEntry) -> BinaryIO:
    try:
        return source.open("rb")
    except FileNotFoundError:
        raise _changed(source, "is gone", entry) from None


def _changed(source: Path, what: str, entry: FileEntry) -> StepctlError:
    return StepctlError(
        f"{source} changed after its manifest was made: it {what}, the manifest says {entry.size} bytes and sha256 "
        f"{entry.sha256}",
        safe="the lineage is as it was",
        code="source_changed",
    )


def _copy(source: BinaryIO, folder: Path) -> tuple[Path, int, str]:
    """Copy an open file to an fsynced temporary file in ``folder``: its path, size in bytes and hex sha256."""
    temporary = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    digest, size = hashlib.sha256(), 0
    try:
        with os.fdopen(fd, "wb") as file:
            while block := source.read(BLOCK):
                digest.update(block)
                size += file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary, size, digest.hexdigest()


def _rename(temporary: Path, target: Path) -> None:
    try:
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _hint(number: int | None) -> str:
    match number:
        case errno.ENOSPC | errno.EDQUOT:
            return "free some space there, then repeat the command"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "check the permissions there, and that its file system has hard links"
        case errno.ENOTSUP:
            return "use a file system that has hard links"
        case _:
            return "check that directory, then repeat the command"
