"""The text of a trace file as blocks of bytes, decompressed on the way; what is damaged ends them and is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from stepctl.traces.formats.packed import PACKINGS, Damaged

BLOCK = 1 << 18
"""Bytes read at once."""

LIMIT = 64 << 20
"""Bytes (in a JSON array: characters) of text that one row may have."""

TOO_LONG = f"is longer than {LIMIT >> 20} MiB of text"


class Blocks:
    """Iterated once. ``damage`` is then why the bytes ended before their end, if they did.

    ``whole`` is what positions count in: the file, or the text that came out of it.
    """

    def __init__(self, file: BinaryIO, packing: str = "") -> None:
        self._blocks = PACKINGS[packing](file) if packing else _plain(file)
        self.whole = "uncompressed text" if packing else "file"
        self.damage: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._blocks
        except Damaged as damaged:
            self.damage = damaged.reason


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block
