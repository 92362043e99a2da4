"""Copies of stored files on this machine, by bucket, lineage and content, so that nothing is downloaded twice.

A copy is used only if its content has the hash that the bucket's listing gives. What no listing names any more goes,
and so does a lineage that was not used here for some weeks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from stepctl.base.files import TEMPORARY, make_dirs

_HASH = re.compile(r"[0-9a-f]{16,128}")


UNUSED_SEC = 30 * 86400.0
"""After so long a lineage's copies go."""

SPARE_BYTES = 1 << 30
"""Of the disk, what copies leave free."""


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/stepctl``, by default ``~/.cache/stepctl``; without a home, one in the temporary folder."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "stepctl"
    try:
        return Path.home() / ".cache" / "stepctl"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"stepctl-{os.getuid()}"


class Cache:
    """The copies of one lineage of one bucket. It is only a help: what fails here is passed over."""

    def __init__(self, root: Path, url: str, lineage: str, hash_of: Callable[[Path], str]) -> None:
        self._all = root / "buckets"
        self._folder = self._all / hashlib.sha256(f"{url}\n{lineage}".encode()).hexdigest()[:32]
        self._hash_of = hash_of

    def take(self, content: str, to: Path) -> bool:
        """Copy the file with that content hash to ``to``; False when there is none, or it is not what it should be."""
        source = self._folder / content
        if not _HASH.fullmatch(content):
            return False
        try:
            shutil.copyfile(source, to)
            if self._hash_of(to) == content:
                os.utime(source)
                return True
            source.unlink(missing_ok=True)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            to.unlink(missing_ok=True)
        return False

    def put(self, content: str, source: Path) -> None:
        """Keep a copy of ``source``, whose content hash that is said to be: it is looked at when it is taken."""
        if not _HASH.fullmatch(content) or (self._folder / content).exists():
            return
        temporary = self._folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            make_dirs(self._folder)
            # What is in a private bucket is nobody else's business on this machine.
            self._all.chmod(0o700)
            if not _link(source, temporary):
                if shutil.disk_usage(self._folder).free - source.stat().st_size < SPARE_BYTES:
                    return
                shutil.copyfile(source, temporary)
            temporary.replace(self._folder / content)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def keep(self, contents: Collection[str]) -> None:
        """Remove all other copies."""
        try:
            doomed = [path for path in self._folder.iterdir() if path.name not in contents]
        except OSError:
            return
        for path in doomed:
            with contextlib.suppress(OSError):
                path.unlink()

    def forget(self, now: float | None = None) -> None:
        """Remove what has not been used for ``UNUSED_SEC``, of whatever lineage; this one counts as used."""
        before = (time.time() if now is None else now) - UNUSED_SEC
        with contextlib.suppress(OSError):
            if self._folder.exists():
                os.utime(self._folder)
            for folder in self._all.iterdir():
                if folder.stat().st_mtime < before:
                    shutil.rmtree(folder, ignore_errors=True)


def _link(source: Path, target: Path) -> bool:
    """Another name for the same bytes costs nothing, where both are in one file system."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True
