"""gzip and zstandard: read as if they were not there, and every damage told with its place, after what can be read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Callable

import pytest
import zstandard
from tests.traces.files import form, read, told

from stepctl.traces.formats.sniff import EXPECTED

LINES = b"".join(b'{"text": "row %d"}\n' % number for number in range(3))
ARRAY = json.dumps([{"text": "row"}] * 3).encode()
PRETTY = b'{\n  "text": "a"\n}\n' * 3
SKIPPED = b"\x53\x2a\x4d\x18\x05\0\0\0abcde"
STOP = "of the file; what follows was not read"
FOLLOWED = "data is followed by something else at byte"
Pack = Callable[[bytes], bytes]


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(data)


@pytest.mark.parametrize(
    ("data", "name"), [(LINES, "JSON lines"), (ARRAY, "a JSON array"), (PRETTY, "pretty-printed JSON objects")]
)
@pytest.mark.parametrize(
    ("pack", "packing"),
    [
        (gz, "gzip"),
        (lambda data: gz(data[:20]) + gz(b"") + gz(data[20:]) + bytes(600), "gzip"),
        (lambda data: gzip.compress(data, 0), "gzip"),
        (zst, "zstandard"),
        (zstandard.compress, "zstandard"),
        (lambda data: zstandard.ZstdCompressor(level=19).compress(data), "zstandard"),
        (lambda data: zst(data[:20]) + SKIPPED + zstandard.compress(data[20:]) + SKIPPED, "zstandard"),
        (
            lambda data: zstandard.ZstdCompressor(write_content_size=False).compressobj().compress(b"") + zst(data),
            "zstandard",
        ),
    ],
)
def test_text_is_read_as_if_it_were_not_packed(data: bytes, name: str, pack: Pack, packing: str) -> None:
    assert read(pack(data)) == read(data)
    assert len(read(data)[0]) == 3
    assert form(pack(data)) == f"{name}, {packing}-compressed"


def test_large_texts_are_unpacked_whole() -> None:
    rows = b"".join(b'{"text": "%s"}\n' % (b"%d " % number * 50_000) for number in range(30))
    for packed in (gz(rows), zst(rows), zstandard.ZstdCompressor(level=19).compress(rows)):
        assert read(packed) == read(rows)
    assert len(read(rows)[0]) == 30


def test_positions_in_text_are_those_of_the_text() -> None:
    data = b'{"text": "a"}\n{"text": "caf\xe9"}\n'
    reason = "is not UTF-8: byte 0xE9 at byte 27 of the uncompressed text"
    assert told(gz(data)) == told(zst(data)) == ([1], [(2, reason)])
    assert "line 1, column 8 of the uncompressed text" in told(zst(b'[{"a" 1}'))[1][0][1].replace(
        "column 7", "column 8"
    )


def test_text_that_is_cut_off_with_the_packing_is_told_once() -> None:
    for data, lines in ((LINES, [1, 2]), (ARRAY, [1, 2]), (PRETTY, [1, 4])):
        cut = zlib.compressobj(wbits=31, level=0)
        packed = cut.compress(data[:-5]) + cut.flush(zlib.Z_FULL_FLUSH)
        reason = f"the gzip data ends too early at byte {len(packed)} of the file; what follows was not read"
        assert told(packed) == (lines, [(None, reason)])


def test_rows_before_a_cut_are_read() -> None:
    for pack, name in ((gz, "gzip"), (zst, "zstandard")):
        packed = pack(LINES)
        for end in range(len(packed) - 1, 5, -1):
            rows, bad = told(packed[:end])
            assert rows == [1, 2, 3][: len(rows)]
            assert bad == [
                (None, f"the {name} data ends too early at byte {end} of the file; what follows was not read")
            ]
        assert told(pack(LINES) + packed[:-1])[0][:3] == [1, 2, 3]


def test_a_last_row_that_is_whole_is_kept_when_its_line_is_not() -> None:
    assert told(gz(LINES + b'{"text": "d"}')[:-3])[0] == [1, 2, 3, 4]


def test_damage_has_a_place() -> None:
    first, second = gz(LINES), gz(LINES)
    wrong = bytearray(second)
    wrong[-8] ^= 1
    at = len(first) + len(second)
    (rows, bad) = told(first + bytes(wrong))
    assert rows == [1, 2, 3, 4, 5, 6]
    assert bad == [(None, f"the gzip data does not match its check sum at byte {at - 5} {STOP}")]
    assert told(first + b"rest") == (
        [1, 2, 3],
        [(None, f"the gzip {FOLLOWED} {len(first)} {STOP}")],
    )
    assert told(first + bytes(3) + b"\x1f\x8b\x07\0") == (
        [1, 2, 3],
        [(None, f"the gzip data is damaged at byte {len(first) + 6} {STOP}")],
    )
    stored = bytearray(gzip.compress(LINES, 0))
    stored[12] ^= 0xFF
    assert told(bytes(stored)) == ([], [(None, f"the gzip data is damaged at byte 14 {STOP}")])


def test_damage_of_zstandard_has_a_place() -> None:
    one = zst(LINES)
    wrong = bytearray(one)
    wrong[-1] ^= 1
    assert told(one + bytes(wrong)) == (
        [1, 2, 3, 4, 5, 6],
        [(None, f"the zstandard data does not match its check sum at byte {2 * len(one) - 4} {STOP}")],
    )
    assert told(one + b"rest") == (
        [1, 2, 3],
        [(None, f"the zstandard {FOLLOWED} {len(one)} {STOP}")],
    )
    assert told(one + SKIPPED[:-1])[1] == [(None, f"the zstandard data ends too early at byte {len(one) + 12} {STOP}")]
    assert told(one + b"\x28\xb5")[1] == [(None, f"the zstandard data ends too early at byte {len(one) + 2} {STOP}")]
    # A block of the kind that does not exist, behind one that is whole.
    raw = b"\x28\xb5\x2f\xfd\x00\x58" + (len(LINES) << 3).to_bytes(3, "little") + LINES
    assert told(raw + b"\x07\0\0") == ([1, 2, 3], [(None, f"the zstandard data is damaged at byte {len(raw)} {STOP}")])
    assert told(raw + b"\x01\0\0") == ([1, 2, 3], [])
    dictionary = b"\x28\xb5\x2f\xfd\x01\x58\x09" + b"\x01\0\0"
    assert "needs a dictionary, which is not in the file, at byte 0" in told(dictionary)[1][0][1]
    window = b"\x28\xb5\x2f\xfd\x00\xa0" + b"\x01\0\0"
    assert "above 128 MiB, at byte 0" in told(window)[1][0][1]


def test_nothing_in_a_packed_file_is_nothing() -> None:
    assert told(gz(b"")) == told(zst(b"")) == told(b"") == ([], [(None, "the trace has no rows")])


@pytest.mark.parametrize(
    ("inner", "nature"),
    [
        (gz(LINES), "gzip-compressed"),
        (zst(LINES), "zstandard-compressed"),
        (lzma.compress(LINES), "xz-compressed"),
        (bz2.compress(LINES), "bzip2-compressed"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (LINES.decode().encode("utf-16"), "UTF-16 text"),
    ],
)
def test_what_is_packed_twice_is_refused(inner: bytes, nature: str) -> None:
    for pack, name in ((gz, "gzip"), (zst, "zstandard")):
        reason = f"the file is {name}-compressed, and what is in it is not UTF-8 text at byte 0: it is {nature}"
        assert told(pack(inner)) == ([], [(None, f"{reason}; {EXPECTED}")])
        assert form(pack(inner)) == f"{nature}, {name}-compressed"
