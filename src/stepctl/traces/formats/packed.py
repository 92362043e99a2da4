"""gzip and zstandard, decompressed in small pieces: the size of what is packed never bears on memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

GZIP = b"\x1f\x8b"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
_INPUT = 1 << 16
_OUTPUT = 1 << 18
_SKIPPABLE = b"\x2a\x4d\x18"
_WINDOW = 1 << 27
_RLE = 1


class Damaged(Exception):
    """What is packed can be read no further; ``reason`` says why and where."""

    def __init__(self, packing: str, what: str, position: int) -> None:
        self.reason = f"the {packing} data {what} at byte {position} of the file; what follows was not read"
        super().__init__(self.reason)


@dataclass
class _Input:
    """Bytes of a file, and the position of the next one."""

    file: BinaryIO
    data: bytes = b""
    position: int = 0

    def fill(self) -> bool:
        """Make ``data`` hold something, unless the file is at its end."""
        if not self.data:
            self.data = self.file.read(_INPUT)
        return bool(self.data)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; less at the end of the file."""
        while len(self.data) < count and (more := self.file.read(max(_INPUT, count))):
            self.data += more
        taken, self.data = self.data[:count], self.data[count:]
        self.position += len(taken)
        return taken

    def keep(self, rest: bytes) -> None:
        """Only ``rest`` of ``data`` is still to be read."""
        self.position += len(self.data) - len(rest)
        self.data = rest


def gunzip(file: BinaryIO) -> Iterator[bytes]:
    """The content of every gzip member of a file, one after the other.

    Raises:
        Damaged: after all that could be read.
    """
    source = _Input(file)
    first = True
    while first or _next_member(source):
        yield from _member(source)
        first = False


def _next_member(source: _Input) -> bool:
    """Whether there is one behind zero bytes, with which tapes and some tools fill up."""
    while source.fill():
        source.keep(source.data.lstrip(b"\0"))
        if source.data:
            if not source.data.startswith(GZIP[:1]):
                raise Damaged("gzip", "is followed by something else", source.position)
            return True
    return False


def _member(source: _Input) -> Iterator[bytes]:
    engine = zlib.decompressobj(wbits=31)
    while not engine.eof:
        more = source.fill()
        before = engine.copy()
        try:
            text = engine.decompress(source.data, _OUTPUT)
        except zlib.error:
            yield from _up_to_damage(before, source)
        if text:
            yield text
        elif not more:
            raise Damaged("gzip", "ends too early", source.position)
        source.keep(engine.unused_data if engine.eof else engine.unconsumed_tail)


def _up_to_damage(engine: zlib._Decompress, source: _Input) -> Iterator[bytes]:
    """What zlib keeps back when a call fails: byte by byte, up to the one that is wrong."""
    good: list[bytes] = []
    for place in range(len(source.data)):
        try:
            good.append(engine.decompress(source.data[place : place + 1]))
        except zlib.error as error:
            yield b"".join(good)
            sums = ("data check", "length check")
            what = "does not match its check sum" if any(each in str(error) for each in sums) else "is damaged"
            raise Damaged("gzip", what, source.position + place) from None
    raise AssertionError("zlib fails at the same byte again")


def unzstd(file: BinaryIO) -> Iterator[bytes]:
    """The content of every zstandard frame of a file, one after the other.

    Raises:
        Damaged: after all that could be read.
    """
    source = _Input(file)
    while magic := source.take(4):
        start = source.position - len(magic)
        if magic == ZSTANDARD:
            yield from _frame(source)
        elif magic[1:] == _SKIPPABLE and magic[0] >> 4 == 5:
            _skip(source, int.from_bytes(_exactly(source, 4), "little"))
        elif len(magic) < 4:
            raise Damaged("zstandard", "ends too early", source.position)
        else:
            raise Damaged("zstandard", "is followed by something else", start)


def _exactly(source: _Input, count: int) -> bytes:
    taken = source.take(count)
    if len(taken) < count:
        raise Damaged("zstandard", "ends too early", source.position)
    return taken


def _skip(source: _Input, count: int) -> None:
    while count:
        count -= len(_exactly(source, min(count, _INPUT)))


def _frame(source: _Input) -> Iterator[bytes]:
    """One frame, block by block: a block gives at most 128 KiB, and the one that is damaged is known."""
    from zstandard import ZstdDecompressor, ZstdError

    start = source.position - 4
    descriptor = _exactly(source, 1)
    flags = descriptor[0]
    alone, dictionary, checked = flags & 0x20, (0, 1, 2, 4)[flags & 3], flags & 4
    size = (1 if alone else 0, 2, 4, 8)[flags >> 6]
    header = _exactly(source, (0 if alone else 1) + dictionary + size)
    if any(header[0 if alone else 1 :][:dictionary]):
        raise Damaged("zstandard", "needs a dictionary, which is not in the file,", start)
    engine = ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
    place, what = start, f"is damaged, or made for a window above {_WINDOW >> 20} MiB,"
    try:
        yield engine.decompress(ZSTANDARD + descriptor + header)
        what, last = "is damaged", 0
        while not last:
            place = source.position
            three = _exactly(source, 3)
            head = int.from_bytes(three, "little")
            last, form = head & 1, head >> 1 & 3
            yield engine.decompress(three + _exactly(source, 1 if form == _RLE else head >> 3))
        if checked:
            what, place = "does not match its check sum", source.position
            yield engine.decompress(_exactly(source, 4))
    except ZstdError:
        raise Damaged("zstandard", what, place) from None
    if not engine.eof:
        raise Damaged("zstandard", "is damaged", place)


PACKINGS: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {"gzip": gunzip, "zstandard": unzstd}
