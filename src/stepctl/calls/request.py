"""What ``stepctl train`` was asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stepctl.base.errors import UsageError
from stepctl.traces.rows import Source

STDIN = "-"


@dataclass(frozen=True)
class TrainRequest:
    """The options of one call that are not settings. ``paths`` are as recorded: absolute, or ``-``."""

    paths: tuple[str, ...]
    sources: tuple[Source, ...]
    eval_path: str | None = None
    eval_source: Source | None = None
    key: str | None = None
    go_on: bool = False
    fresh: bool = False
    expect_step: int | None = None
    detach: bool = False
    no_wait: bool = False
    run: str | None = None
    """Set when an earlier run that never got its examples is started again: by a call that only attaches to it."""
    keep_pod_sec: float | None = None
    """Seconds that the pod stays after the run, for the next call; None ends it."""
    timeout: float | None = None
    """Seconds to wait for the end at most."""


def read_sources(names: Sequence[str], stdin: BinaryIO) -> tuple[tuple[str, ...], tuple[Source, ...]]:
    """Read the trace files, whole, in the order given.

    Returns:
        Their absolute paths and their bytes.

    Raises:
        UsageError: one is missing, a folder, unreadable, or named twice.
    """
    require_once(names)
    paths, sources = [], []
    for name in names:
        paths.append(name if name == STDIN else str(Path(name).absolute()))
        sources.append(Source(name=name, data=stdin.read()) if name == STDIN else read_source(name))
    return tuple(paths), tuple(sources)


def require_once(names: Sequence[str]) -> None:
    """Raises:
    UsageError: two of the names mean one file.
    """
    if len({name if name == STDIN else os.path.realpath(name) for name in names}) != len(names):
        raise UsageError("a trace is named twice", next="name each file once")


def read_source(name: str) -> Source:
    """Read one file, whole.

    Raises:
        UsageError: it is missing, a folder, or unreadable.
    """
    with read_name(name):
        return Source(name=name, data=Path(name).read_bytes())


@contextmanager
def read_name(name: str) -> Iterator[None]:
    """What goes wrong inside, while the file of this name is read, is told as a person needs it.

    Raises:
        UsageError: the file is missing, a folder, or unreadable.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of the file {os.fsencode(name)!r} is not UTF-8, and a record could not hold it",
            next="rename it, or send it on stdin: stepctl train - < FILE",
        ) from None
    try:
        yield
    except FileNotFoundError:
        raise UsageError(f"the file {name} does not exist", next="check the path", code="no_such_file") from None
    except IsADirectoryError:
        raise UsageError(f"{name} is a folder", next="name the files in it") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}", next="check its permissions") from None
