"""Files over stdin and stdout, with a digest that both sides compare."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepctl.agent.pipes import Input, writer
from stepctl.agent.within import within
from stepctl.base.archive import ArchiveError, files_below, pack, place, unpack
from stepctl.base.files import TEMPORARY, make_dirs, write_atomic

ORIGIN = ".from"
"""Ends the name of the file beside a folder that says what it was made from."""


_INCOMING = f"{TEMPORARY}in-"
_OLD_SEC = 24 * 3600


def origin(target: Path) -> Path:
    """Where the digest of a folder's source is noted."""
    return target.with_name(f".{target.name}{ORIGIN}")


def receive(workdir: Path) -> int:
    """Unpack a stream into a folder below ``workdir``: whole, durable, in the place of what was there.

    The first line of stdin is ``{"dest": path, "digest": text, "keep": bool}``; with ``keep`` a folder that is there
    already stays. Answers with a line ``{"sha256": ...}`` or ``{"error": ...}``.
    """
    stdin, say = Input(), writer()
    head: dict[str, Any] = json.loads(stdin.line())
    temporary = None
    try:
        target = within(workdir, Path(head["dest"]))
        make_dirs(target.parent)
        _sweep(target.parent)
        temporary = target.parent / f"{_INCOMING}{os.urandom(8).hex()}"
        temporary.mkdir(mode=0o700)
        digest = unpack(stdin, temporary)
        if head.get("keep") and target.is_dir():
            shutil.rmtree(temporary)
        else:
            place(temporary, target)
        if head.get("digest"):
            write_atomic(origin(target), str(head["digest"]).encode())
        say(json.dumps({"sha256": digest}).encode() + b"\n")
    except (ArchiveError, OSError) as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        say(json.dumps({"error": str(error), "errno": getattr(error, "errno", None)}).encode() + b"\n")
        return 1
    return 0


def _sweep(parent: Path) -> None:
    """What transfers left that were cut with their process killed."""
    for path in parent.glob(f"{_INCOMING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD_SEC:
                shutil.rmtree(path, ignore_errors=True)


def send(root: Path, paths: Sequence[str]) -> int:
    """Pack what lies below some ``paths`` of ``root``; an error takes the place of the stream."""
    say = writer()
    try:
        files = files_below(root, paths)
    except (ArchiveError, OSError) as error:
        say(json.dumps({"error": str(error)}).encode() + b"\n")
        return 1
    try:
        pack(files, say)
    except (ArchiveError, OSError):
        return 1  # the stream has no end, and so is not taken for whole
    return 0
