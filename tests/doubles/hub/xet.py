"""The formats of the xet data plane: xorbs (packed chunks) and shards (which chunks make up which file).

They are published in Hugging Face's "Xet protocol" documentation. Only what a server needs is here: it takes apart what
clients upload, and packs a shard as the answer to a deduplication query.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

from .state import HubError

RECORD = 48  # bytes; a shard is made of records of this size
END = b"\xff" * 32  # the hash in the record that ends a section
TAG = b"HFRepoMetaData\0" + bytes.fromhex("5569 67456a 7b81 5783 a5bd d95c cdd1 4aa9")
FOOTER = 200  # bytes
VERIFIED, WITH_SHA256 = 1 << 31, 1 << 30  # flags of a file's header: further records follow
ELIGIBLE = 1 << 31  # flag of a chunk that others may be deduplicated against
PACKED = 64 * 1024  # bytes in the chunks that the server packs itself


class Term(NamedTuple):
    """A part of a file: chunks ``start`` to ``end`` (not included) of a xorb, ``size`` bytes when unpacked."""

    xorb: str
    size: int
    start: int
    end: int


class Chunk(NamedTuple):
    digest: bytes
    eligible: bool


@dataclass(frozen=True)
class Layout:
    """Where a xorb's chunks lie: n + 1 offsets in the packed bytes, and n unpacked sizes."""

    offsets: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class Shard:
    files: dict[str, list[Term]]
    xorbs: dict[str, list[Chunk]]
    listing: bytes  # the records of ``xorbs`` as they came


def text_of(digest: bytes) -> str:
    """A hash as xet writes it: four little-endian numbers."""
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", digest))


def layout_of(xorb: bytes) -> Layout:
    """Walk over a xorb's chunk headers: version, packed size (3 bytes), scheme, unpacked size (3 bytes)."""
    offsets, sizes, at = [0], [], 0
    while at < len(xorb) and xorb[at : at + 7] != b"XETBLOB":  # a footer may follow the chunks
        packed, unpacked = (
            int.from_bytes(xorb[at + 1 : at + 4], "little"),
            int.from_bytes(xorb[at + 5 : at + 8], "little"),
        )
        at += 8 + packed
        if at > len(xorb) or xorb[offsets[-1]] != 0 or xorb[offsets[-1] + 4] > 2:
            raise HubError(400, "malformed xorb")
        offsets.append(at)
        sizes.append(unpacked)
    return Layout(offsets, sizes)


def pack(data: bytes) -> bytes:
    """A xorb that holds ``data`` as it is, in chunks that are not compressed."""
    parts = [data[at : at + PACKED] for at in range(0, len(data), PACKED)]
    return b"".join(b"\0" + (size := len(part).to_bytes(3, "little")) + b"\0" + size + part for part in parts)


def unpack(chunk: bytes) -> bytes:
    """The bytes in one chunk, header included: plain, by LZ4, or by LZ4 after grouping every fourth byte."""
    scheme, size, packed = chunk[4], int.from_bytes(chunk[5:8], "little"), chunk[8:]
    if scheme == 0:
        return packed
    plain = _unpack_lz4(packed)
    if scheme == 1:
        return plain
    grouped, at = bytearray(size), 0
    for group in range(4):
        count = (size - group + 3) // 4
        grouped[group::4] = plain[at : at + count]
        at += count
    return bytes(grouped)


def _unpack_lz4(frame: bytes) -> bytes:
    """LZ4's frame format, without checking its sums: magic, flags, blocks until an empty one."""
    flags = frame[4]
    at = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    out = bytearray()
    while size := int.from_bytes(frame[at : at + 4], "little"):
        stored, size = size >> 31, size & 0x7FFFFFFF
        block = frame[at + 4 : at + 4 + size]
        if stored:
            out += block
        else:
            _unpack_block(block, out)
        at += 4 + size + (4 if flags & 16 else 0)
    return bytes(out)


def _unpack_block(block: bytes, out: bytearray) -> None:
    """One LZ4 block: runs of new bytes, each followed by a copy of what came before."""

    def more(length: int, at: int) -> tuple[int, int]:
        if length == 15:
            while (step := block[at]) == 255:
                length, at = length + 255, at + 1
            length, at = length + step, at + 1
        return length, at

    at = 0
    while at < len(block):
        token = block[at]
        length, at = more(token >> 4, at + 1)
        out += block[at : at + length]
        at += length
        if at >= len(block):
            return
        back = int.from_bytes(block[at : at + 2], "little")
        length, at = more(token & 15, at + 2)
        length += 4
        source = bytes(out[-back:][:length])
        out += (source * (length // len(source) + 1))[:length]


def shard_of(data: bytes) -> Shard:
    """Take an uploaded shard apart: a header, the section of files, the section of xorbs."""
    if data[:32] != TAG:
        raise HubError(400, "not a shard")
    at, files, xorbs = RECORD, {}, {}
    while (digest := data[at : at + 32]) != END:
        flags, count = struct.unpack_from("<II", data, at + 32)
        terms = []
        for index in range(1, count + 1):
            entry = at + index * RECORD
            _, size, start, end = struct.unpack_from("<IIII", data, entry + 32)
            terms.append(Term(text_of(data[entry : entry + 32]), size, start, end))
        files[text_of(digest)] = terms
        at += RECORD * (1 + count * (2 if flags & VERIFIED else 1) + (1 if flags & WITH_SHA256 else 0))
    at += RECORD
    first = at
    while (digest := data[at : at + 32]) != END:
        (count,) = struct.unpack_from("<I", data, at + 36)
        chunks = []
        for index in range(1, count + 1):
            entry = at + index * RECORD
            (flags,) = struct.unpack_from("<I", data, entry + 40)
            chunks.append(Chunk(data[entry : entry + 32], bool(flags & ELIGIBLE)))
        xorbs[text_of(digest)] = chunks
        at += RECORD * (1 + count)
    return Shard(files, xorbs, data[first:at])


def dedup_shard(shard: Shard) -> bytes:
    """The xorbs of a shard as a shard of their own, without files, with the lookup tables and the footer."""
    end = END + bytes(RECORD - len(END))
    body = TAG + struct.pack("<QQ", 2, FOOTER) + end + shard.listing + end
    xorbs, chunks, record = [], [], 0
    for xorb, members in shard.xorbs.items():
        xorbs.append((int(xorb[:16], 16), record))
        chunks += [(struct.unpack_from("<Q", c.digest)[0], record, index) for index, c in enumerate(members)]
        record += 1 + len(members)
    at_xorbs = len(body)
    body += b"".join(struct.pack("<QI", *entry) for entry in sorted(xorbs))
    at_chunks = len(body)
    body += b"".join(struct.pack("<QII", *entry) for entry in sorted(chunks))
    tables = (at_xorbs, 0, at_xorbs, len(xorbs), at_chunks, len(chunks))  # of files, of xorbs, of chunks
    made = int(time.time())
    footer = struct.pack("<9Q", 1, RECORD, 2 * RECORD, *tables) + bytes(32)  # no key: the hashes are the plain ones
    return body + footer + struct.pack("<12Q", made, made + 7 * 86400, *[0] * 9, len(body))
