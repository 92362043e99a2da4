"""A storage bucket of the Hugging Face Hub. What is known of it is in docs/buckets.md.

It has no exclusive create, no transaction over files and no versions; downloads are neither verified nor atomic. So
each checkpoint has a folder of its own, its manifest comes in a last request, and the Hub's ``uploadedAt``, then the
name, decide between siblings.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from stepctl.base.errors import StepctlError
from stepctl.base.files import TEMPORARY, fsync_dir, make_dirs, sha256_file
from stepctl.lineage.buckets.base import LOCK_WAIT_SEC, Absent, BucketError, Changed, Report, Stored, is_safe
from stepctl.lineage.buckets.cache import Cache, cache_root
from stepctl.lineage.buckets.hf_client import Client
from stepctl.lineage.buckets.locks import wait_for
from stepctl.lineage.records import FileEntry

if TYPE_CHECKING:
    from huggingface_hub import BucketFile


_EARLY_SEC = 0.1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRIES = 2


class HubBucket:
    """See :class:`stepctl.lineage.buckets.base.Bucket`.

    ``new`` says that a bucket which does not exist yet is an empty one (it is made on the first write); else it is an
    error. ``report`` hears of the bytes of uploads and downloads. Without ``cached`` no copy on this machine is used.
    """

    exclusive = False

    def __init__(
        self, url: str, token: str | None, *, new: bool = False, report: Report | None = None, cached: bool = True
    ) -> None:
        self._url, self._token, self._new, self._cached = url, token, new, cached
        namespace, name, *prefix = url.removeprefix("hf://buckets/").split("/")
        self._prefix = "/".join(prefix)
        self._client = Client(f"{namespace}/{name}", token)
        self._report = report
        self._seen: dict[str, BucketFile] = {}

    @property
    def url(self) -> str:
        return self._url

    def uncached(self) -> HubBucket:
        return HubBucket(self._url, self._token, new=self._new, report=self._report, cached=False)

    # --- reading --------------------------------------------------------------------------------------------------

    def list_folders(self) -> list[str]:
        if not self._there():
            return []
        inside = f"{self._prefix}/" if self._prefix else ""
        found = self._client.tree(self._prefix, recursive=False)
        return sorted(
            f.path.removeprefix(inside).rstrip("/")
            for f in found
            if f.type == "directory" and f.path.startswith(inside)
        )

    def list_files(self, prefix: str) -> list[Stored]:
        if not self._there():
            return []
        at = self._at(prefix)
        # A prefix is only compared with the beginning of paths: another folder's name may begin with this one.
        found = [f for f in self._client.tree(at, recursive=True) if f.type == "file" and f.path.startswith(f"{at}/")]
        self._seen = {path: f for path, f in self._seen.items() if not path.startswith(f"{at}/")}
        self._seen |= {f.path: f for f in found}
        lineage, _, kind = prefix.partition("/")
        if kind == "checkpoints":
            inside = self._at(lineage) + "/"
            cache = self._cache(lineage)
            cache.keep({f.xet_hash for path, f in self._seen.items() if path.startswith(inside)})
            cache.forget()
        stored = (Stored(path=self._of(f.path), size=f.size, stored_at=_nanoseconds(f.uploaded_at)) for f in found)
        return sorted(stored, key=lambda each: each.path)

    def read(self, path: str) -> bytes:
        at = self._at(path)
        with tempfile.TemporaryDirectory(prefix="stepctl-") as folder:
            target = Path(folder) / "file"
            for _ in range(_TRIES):
                self._get({at: target}, path.partition("/")[0])
                if self._right(target, self._seen[at]):
                    return target.read_bytes()
        raise Changed(f"{path} arrives from {self.url} with other content than it was stored with")

    def sha256(self, path: str) -> str:
        """Of what the Hub sends now: no copy on this machine is used."""
        at = self._at(path)
        with tempfile.TemporaryDirectory(prefix="stepctl-") as folder:
            target = Path(folder) / "file"
            self._download([(self._about([at])[at], target)])
            return sha256_file(target)

    def fetch(self, prefix: str, paths: Sequence[str], to: Path) -> None:
        wanted = {self._at(f"{prefix}/{path}"): to / path for path in paths}
        temporary = {}
        for at, target in wanted.items():
            make_dirs(target.parent)
            temporary[at] = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            with _written_early(list(temporary.values())):
                self._get(temporary, prefix.partition("/")[0])
            for at, target in wanted.items():
                _sync(temporary[at])
                temporary[at].replace(target)
        finally:
            for path in temporary.values():
                path.unlink(missing_ok=True)
        for folder in {target.parent for target in wanted.values()}:
            fsync_dir(folder)

    def _get(self, files: dict[str, Path], lineage: str) -> None:
        """Put stored files at local paths, from this machine's copies where they are right."""
        about, cache = self._about(list(files)), self._cache(lineage)
        missing = [
            (about[at], to) for at, to in files.items() if not self._cached or not cache.take(about[at].xet_hash, to)
        ]
        self._download(missing)
        for file, to in missing:
            # Whoever asked for it compares it with the manifest; the copy is compared when it is used.
            if file.size and to.stat().st_size == file.size:
                cache.put(file.xet_hash, to)

    def _right(self, path: Path, file: BucketFile) -> bool:
        return path.stat().st_size == file.size and (not file.size or _hash(path) == file.xet_hash)

    def _download(self, files: list[tuple[BucketFile, Path]]) -> None:
        if files:
            self._client.download(files, self._report)

    def _about(self, paths: Sequence[str]) -> dict[str, BucketFile]:
        """What the newest listing, or the Hub now, says of files.

        Raises:
            Absent: one does not exist.
        """
        unknown = [path for path in paths if path not in self._seen]
        if unknown and self._there():
            self._seen |= self._client.info(unknown)
        for path in paths:
            if path not in self._seen:
                raise Absent(f"{self._of(path)} does not exist in {self.url}", next="stepctl lineage verify")
        return {path: self._seen[path] for path in paths}

    # --- writing --------------------------------------------------------------------------------------------------

    def put_files(self, prefix: str, folder: Path, entries: Sequence[FileEntry]) -> None:
        self._make()
        wanted = {self._at(f"{prefix}/{entry.path}"): entry for entry in entries}
        sources = {at: folder / entry.path for at, entry in wanted.items()}
        there = self._stored(list(wanted))
        with ThreadPoolExecutor(1) as beside:
            # Hashing is done while the rest goes up: before the manifest is written, both are known.
            hashing = beside.submit(lambda: {at: _source_hash(sources[at], entry) for at, entry in wanted.items()})
            absent = [at for at, entry in wanted.items() if at not in there or there[at].size != entry.size]
            self._add(sources, absent)
            hashes = hashing.result()
        other = [at for at in there if at not in absent and not _is(there[at], wanted[at].size, hashes[at])]
        self._add(sources, other)
        # A source that was cut or changed on its way is stored as it was then, with success.
        there = self._stored(list(wanted))
        for at, entry in wanted.items():
            if not _is(there.get(at), entry.size, hashes[at]):
                raise _arrived_changed(self._of(at), self.url)
        cache = self._cache(prefix.partition("/")[0])
        for at, source in sources.items():
            cache.put(hashes[at], source)

    def _add(self, sources: dict[str, Path], at: list[str]) -> None:
        if missing := [path for path in at if not sources[path].is_file()]:
            raise _source_changed(sources[missing[0]])
        if at:
            self._client.add([(sources[path], path) for path in at], self._report)

    def put_new(self, path: str, data: bytes) -> bool:
        self._make()
        at = self._at(path)
        if self._client.info([at]):
            return False
        with tempfile.TemporaryDirectory(prefix="stepctl-") as folder:
            copy = Path(folder) / "file"
            copy.write_bytes(data)
            content = _hash(copy)

            def stored() -> bool:
                return _is(self._stored([at]).get(at), len(data), content)

            self._client.add([(data, at)], stored=stored)
            if not stored():
                raise _arrived_changed(path, self.url)
            self._cache(path.partition("/")[0]).put(content, copy)
        return True

    def _stored(self, paths: Sequence[str]) -> dict[str, BucketFile]:
        """What the Hub has now."""
        there = self._client.info(paths)
        self._seen |= there
        return there

    def delete(self, paths: Sequence[str]) -> None:
        if not paths or not self._there():
            return
        at = [self._at(path.rstrip("/")) for path in paths]
        self._client.delete(at)
        for path in at:
            self._seen.pop(path, None)

    @contextmanager
    def lock(self, lineage: str, wait_sec: float = LOCK_WAIT_SEC) -> Iterator[None]:
        name = hashlib.sha256(f"{self.url}\n{lineage}".encode()).hexdigest()[:32]
        path = cache_root() / "locks" / f"{name}.lock"
        try:
            make_dirs(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BucketError(
                f"cannot lock lineage {lineage} on this machine: {path}: {error.strerror}",
                next="set XDG_CACHE_HOME to a folder that can be written",
            ) from error
        try:
            wait_for(fd, f"lineage {lineage} in {self.url}", wait_sec)
            yield
        finally:
            os.close(fd)

    def check_writable(self) -> None:
        if self._there():
            self._client.check_write()
            return
        self._make()
        self._client.check_write()

    def _there(self) -> bool:
        if self._client.exists():
            return True
        if not self._new:
            self._client.require()
        return False

    def _make(self) -> None:
        if not self._client.exists():
            self._client.create()

    # --- names ----------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> str:
        if not is_safe(path):
            raise BucketError(f"{path!r} is not a path inside the bucket {self.url}")
        return f"{self._prefix}/{path}" if self._prefix else path

    def _of(self, at: str) -> str:
        return at.removeprefix(f"{self._prefix}/") if self._prefix else at

    def _cache(self, lineage: str) -> Cache:
        return Cache(cache_root(), self.url, lineage, _hash)


def _is(file: BucketFile | None, size: int, content: str) -> bool:
    return file is not None and file.size == size and (not size or file.xet_hash == content)


def _hash(path: Path) -> str:
    """The content hash that a listing gives."""
    from hf_xet import hash_files  # type: ignore[import-untyped]

    (found,) = hash_files([str(path)])
    return str(found.hash)


def _source_hash(source: Path, entry: FileEntry) -> str:
    """The content hash of a file that is as its entry says.

    Raises:
        StepctlError: it is not.
    """
    try:
        size, sha256 = source.stat().st_size, sha256_file(source)
        found = _hash(source)
    except FileNotFoundError:
        size, sha256, found = 0, "", ""
    if (size, sha256) != (entry.size, entry.sha256):
        raise _source_changed(source)
    return found


def _source_changed(source: Path) -> StepctlError:
    return StepctlError(
        f"{source} changed after its manifest was made", safe="the lineage is as it was", code="source_changed"
    )


def _arrived_changed(path: str, url: str) -> StepctlError:
    return StepctlError(
        f"{path} was sent to {url}, but what is stored there is something else",
        safe="the lineage is as it was: no manifest was written",
        next="repeat the command; the file here must not be changed meanwhile",
        code="source_changed",
    )


@contextmanager
def _written_early(paths: Sequence[Path]) -> Iterator[None]:
    """Write files out while they still arrive, so that the fsync at the end finds little left to do."""
    arrived = threading.Event()

    def write() -> None:
        while not arrived.wait(_EARLY_SEC):
            for path in paths:
                with contextlib.suppress(OSError):
                    _sync(path)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        arrived.set()
        thread.join()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _nanoseconds(moment: datetime | None) -> int:
    """Since the epoch; of a file without a time, the end of all: it came after those that have one."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000 if moment else 1 << 62
