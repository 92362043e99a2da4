"""A folder's files as one stream, and back: how trees go over an SSH channel. Only plain files and their folders.

A line of JSON says how many bytes and files come; then each file: a line with its path and size, and its bytes. The
last line has the sha256 of all before it, so that a stream that was cut or changed is never taken for a whole one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol, cast

from stepctl.base.files import BLOCK, TEMPORARY, fsync_dir

_LINE = 1 << 16
_FEW = 32
_LONG = 1 << 16
PACKET = 32768 - 64
"""Bytes that fill a packet as OpenSSH takes it."""
_BLOCK = 16 * PACKET
"""Small enough to stay in a processor's cache while it is copied, hashed and sent."""
_BUFFER = 2 * _BLOCK
_WRITEBACK = 1 << 24
_START_WRITING = 2

Write = Callable[[bytes | memoryview], object]
Report = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class ArchiveError(Exception):
    """The stream is cut, changed, or tries to leave its folder; or a file changed while it was read."""


class _Digest:
    """sha256 that is computed beside what is done with the bytes: hashlib lets go of the interpreter for long ones.

    What it is given must stay as it is until the next call. (concurrent.futures would do, and takes as long to import
    as the agent takes to start.)
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._given: SimpleQueue[bytes | memoryview | None] = SimpleQueue()
        self._taken: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False

    def update(self, data: bytes | memoryview) -> None:
        self.settle()
        if len(data) < _LONG:
            self._sha256.update(data)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._busy = True
        self._given.put(data)

    def hexdigest(self) -> str:
        self.settle()
        return self._sha256.hexdigest()

    def close(self) -> None:
        """Nothing more comes."""
        self._given.put(None)

    def settle(self) -> None:
        """Wait until what was given may change."""
        if self._busy:
            self._taken.get()
            self._busy = False

    def _work(self) -> None:
        while (data := self._given.get()) is not None:
            self._sha256.update(data)
            self._taken.put(None)


class Source(Protocol):
    """Where a stream is read from."""

    def recv_into(self, room: memoryview, /) -> int:
        """Fill some of ``room``, from its start; returns how many bytes, 0 at the end."""


class File(NamedTuple):
    """One file to send: its path in the stream, and where it lies."""

    name: str
    path: Path
    size: int


def files_below(root: Path, paths: Sequence[str] = ("",), *, links: bool = False) -> list[File]:
    """The plain files below ``root``, or below some ``paths`` in it, sorted; temporary files are left out.

    ``links`` takes what a link leads to for the file or folder (a user's own model folder, never what a job made).

    Raises:
        ArchiveError: there is a link or something else that is no plain file.
        OSError: one is not there.
    """
    found: list[File] = []
    for path in paths:
        start = root / path
        if start.is_symlink() and not links:
            raise ArchiveError(f"{start} is a link, and links are not followed")
        found += _walk(root, start, links) if start.is_dir() else [_file(root, start)]
    return found


def _file(root: Path, path: Path) -> File:
    return File(path.relative_to(root).as_posix(), path, path.stat().st_size)


def _walk(root: Path, folder: Path, links: bool) -> Iterator[File]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith(TEMPORARY):
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=links):
                yield from _walk(root, path, links)
            elif entry.is_file(follow_symlinks=links):
                yield File(path.relative_to(root).as_posix(), path, entry.stat(follow_symlinks=links).st_size)
            else:
                raise ArchiveError(f"{path} is not a plain file, and links are not followed")


def tree_digest(files: Sequence[File]) -> str:
    """Hex sha256 over names and contents: equal for equal trees."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(json.dumps([file.name, file.size]).encode())
        with file.path.open("rb") as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def pack(files: Sequence[File], write: Write, report: Report = lambda *_: None) -> str:
    """Write the stream. What ``write`` is given is its own only until it returns.

    Returns:
        The hex sha256 that its last line says.

    Raises:
        ArchiveError: a file is not as long as it was.
    """
    with closing(_Digest()) as digest:
        return _pack(files, write, report, digest)


def _pack(files: Sequence[File], write: Write, report: Report, digest: _Digest) -> str:
    total, done = sum(file.size for file in files), 0
    # Two blocks in turn: one may still be hashed while the other is filled.
    block, other = memoryview(bytearray(_BLOCK)), memoryview(bytearray(_BLOCK))
    head = _line({"bytes": total, "files": len(files)})
    block[: len(head)] = head
    filled = len(head)

    def flush() -> None:
        nonlocal block, other, filled
        digest.update(block[:filled])
        write(block[:filled])
        block, other, filled = other, block, 0
        report(done, total)

    for file in files:
        head = _line({"path": file.name, "size": file.size})
        if filled + len(head) > _BLOCK:
            flush()
        block[filled : filled + len(head)] = head
        filled += len(head)
        left = file.size
        with file.path.open("rb", buffering=0) as stream:
            while left:
                if filled == _BLOCK:
                    flush()
                count = stream.readinto(block[filled : filled + left])
                if not count:
                    raise ArchiveError(f"{file.name} became shorter while it was read")
                filled, left, done = filled + count, left - count, done + count
    flush()
    found = digest.hexdigest()
    write(_line({"sha256": found}))
    return found


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


class _Reader:
    """Lines and bytes of a stream, hashed as they are taken."""

    def __init__(self, source: Source, digest: _Digest) -> None:
        self._source, self.digest = source, digest
        # Two in turn: one may still be hashed while the other is filled.
        self._buffer, self._other = bytearray(_BUFFER), bytearray(_BUFFER)
        self._lent: bytearray | None = None
        self._at = self._end = 0

    def _more(self, wanted: int = 1) -> None:
        """Read until at least ``wanted`` bytes are here, and more than before."""
        if self._lent is self._other:
            self.digest.settle()
        left = self._end - self._at
        self._other[:left] = memoryview(self._buffer)[self._at : self._end]
        self._buffer, self._other = self._other, self._buffer
        self._at, self._end = 0, left
        while self._end < wanted or self._end == left:
            count = self._source.recv_into(memoryview(self._buffer)[self._end :])
            if not count:
                raise ArchiveError("the transfer was cut")
            self._end += count

    def line(self) -> dict[str, Any]:
        while (end := self._buffer.find(b"\n", self._at, self._end)) < 0:
            if self._end - self._at > _LINE:
                raise ArchiveError("the transfer holds something else than files")
            self._more()
        raw = bytes(self._buffer[self._at : end + 1])
        self._at = end + 1
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ArchiveError("the transfer holds something else than files")
        if "sha256" not in value:
            self.digest.update(raw)
        return value

    def take(self, limit: int) -> memoryview:
        """The next bytes: ``limit`` of them, or a large part. They stay as they are until the next call."""
        if self._end - self._at < min(limit, _BLOCK):
            self._more(min(limit, _BLOCK))
        part = memoryview(self._buffer)[self._at : min(self._at + limit, self._end)]
        self._at += len(part)
        self._lent = self._buffer
        self.digest.update(part)
        return part


def unpack(source: Source, folder: Path, report: Report = lambda *_: None) -> str:
    """Write the files of a stream below ``folder``, a new and empty one, and make them durable.

    Returns:
        The hex sha256 of the stream, which is the one that it ends with.

    Raises:
        ArchiveError: it is cut or changed; what was written is the caller's to remove.
        OSError: the disk is full.
    """
    with closing(_Digest()) as digest:
        return _unpack(_Reader(source, digest), folder, report)


def _unpack(reader: _Reader, folder: Path, report: Report) -> str:
    made, done = {""}, 0
    head = reader.line()
    if "error" in head:
        raise ArchiveError(str(head["error"]))
    total = _count(head, "bytes")
    names: list[str] = []
    while "sha256" not in (entry := reader.line()):
        name = _safe(entry.get("path"))
        parent = name.rpartition("/")[0]
        if parent not in made:
            (folder / parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        left = _count(entry, "size")
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        writeback = _Writeback(fd)
        try:
            while left:
                part = reader.take(left)
                left -= len(part)
                done += len(part)
                _write_all(fd, part)
                writeback.wrote(len(part))
                report(done, total)
        finally:
            os.close(fd)
        names.append(name)
    if len(names) != _count(head, "files") or entry["sha256"] != reader.digest.hexdigest():
        raise ArchiveError("what arrived is not what was sent")
    make_durable(folder, names)
    return reader.digest.hexdigest()


class _Writeback:
    """Lets the system begin to write a long file to the disk while more is coming: the end has less to wait for."""

    def __init__(self, fd: int) -> None:
        self._fd, self._at, self._begun = fd, 0, 0

    def wrote(self, size: int) -> None:
        """So many bytes more are in the file."""
        self._at += size
        if self._at - self._begun >= _WRITEBACK:
            _sync_file_range()(self._fd, self._begun, self._at - self._begun, _START_WRITING)
            self._begun = self._at


@cache
def _sync_file_range() -> Callable[[int, int, int, int], object]:
    """Linux's function of that name; one that does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return lambda *_: None
    import ctypes

    found = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is None:
        return lambda *_: None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast(Callable[[int, int, int, int], object], found)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _count(value: dict[str, Any], name: str) -> int:
    number = value.get(name)
    if type(number) is not int or number < 0:
        raise ArchiveError("the transfer holds something else than files")
    return number


def _safe(name: object) -> str:
    """A path that stays below its folder."""
    if not isinstance(name, str) or not name or "\0" in name or name.startswith("/"):
        raise ArchiveError("the transfer names a file that has no safe name")
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ArchiveError("the transfer names a file that has no safe name")
    return name


def make_durable(folder: Path, names: Sequence[str]) -> None:
    """Make files below ``folder`` and their names durable; many at once where the system can."""
    if len(names) > _FEW and _syncfs(folder):
        return
    for name in names:
        fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    parents = {(folder / name).parent for name in names}
    for parent in {
        *parents,
        *(above for each in parents for above in each.parents if folder in (above, *above.parents)),
    }:
        fsync_dir(parent)


def _syncfs(folder: Path) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    sync = getattr(ctypes.CDLL(None), "syncfs", None)
    if sync is None:
        return False
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return bool(sync(fd) == 0)
    finally:
        os.close(fd)


def place(made: Path, target: Path) -> None:
    """Rename a complete folder to ``target``, in the place of what is there."""
    old = target.with_name(f"{TEMPORARY}{os.urandom(8).hex()}")
    try:
        target.rename(old)
    except FileNotFoundError:
        old = made
    made.rename(target)
    fsync_dir(target.parent)
    if old != made:
        shutil.rmtree(old, ignore_errors=True)
