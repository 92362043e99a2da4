"""Trace files as tests need them: read whole, or in blocks as small as a byte."""

from __future__ import annotations

import io
from typing import BinaryIO

from stepctl.traces.read import RawRow, read_rows
from stepctl.traces.rows import BadRow, Source


class Dribble(io.BytesIO):
    """Gives at most ``step`` bytes a read."""

    step = 1

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(self.step, size) if size is not None and size >= 0 else self.step)


class SmallBlocks:
    """A source that is read in small blocks."""

    def __init__(self, data: bytes, step: int) -> None:
        self.name, self.data, self.step = "t", data, step

    def open(self) -> BinaryIO:
        file = Dribble(self.data)
        file.step = self.step
        return file

    def sha256(self) -> str:
        raise NotImplementedError


def read(data: bytes) -> tuple[list[RawRow], list[BadRow]]:
    everything = list(read_rows(Source(name="t", data=data)))
    return (
        [row for row in everything if isinstance(row, RawRow)],
        [row for row in everything if isinstance(row, BadRow)],
    )


def told(data: bytes) -> tuple[list[int], list[tuple[int | None, str]]]:
    """Lines of the rows, and lines and reasons of what is bad."""
    rows, bad = read(data)
    return [row.line for row in rows], [(row.line, row.reason) for row in bad]


def form(data: bytes) -> str:
    return read_rows(Source(name="t", data=data)).format
