"""Bytes to rows: every encoding, line end and flaw, with the line it is at."""

from __future__ import annotations

import bz2
import lzma
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.traces.files import form

from stepctl.traces.formats.sniff import EXPECTED
from stepctl.traces.read import RawRow, parse
from stepctl.traces.rows import BadRow, Source


def read(data: bytes) -> tuple[list[RawRow], list[BadRow]]:
    return parse(Source(name="t", data=data))


def only_bad(data: bytes) -> BadRow:
    rows, bad = read(data)
    assert not rows
    assert len(bad) == 1
    return bad[0]


def test_physical_lines_are_counted_across_bom_crlf_and_blank_lines() -> None:
    rows, bad = read(b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \t\r\n{"text": "b"}\r\n{"text": "c"}')
    assert [(row.line, row.value) for row in rows] == [(1, {"text": "a"}), (4, {"text": "b"}), (5, {"text": "c"})]
    assert bad == []


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\\r\\n", "\\u0000"])
def test_only_newline_ends_a_line(character: str) -> None:
    rows, bad = read(f'{{"text": "a{character}b"}}\n\n'.encode())
    assert len(rows) == 1
    assert bad == []


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"  \r\n", b"[]", b" [ ] \n"])
def test_no_rows(data: bytes) -> None:
    assert only_bad(data) == BadRow(file="t", line=None, reason="the trace has no rows")


TEXT = '{"text": "a"}\n{"text": "b"}\n'


@pytest.mark.parametrize(
    ("data", "nature"),
    [
        (TEXT.encode("utf-16"), "UTF-16 text"),
        (TEXT.encode("utf-16-be"), "UTF-16 text without a byte-order mark"),
        (TEXT.encode("utf-16-le"), "UTF-16 text without a byte-order mark"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 text"),
        (TEXT.encode("utf-32"), "UTF-32 text"),
        (TEXT.encode("utf-32-be"), "UTF-32 text without a byte-order mark"),
        (TEXT.encode("utf-32-le"), "UTF-32 text without a byte-order mark"),
        (b"PK\x03\x04\x14\x00", "a zip archive"),
        (b"PK\x05\x06" + bytes(18), "an empty zip archive"),
        (bz2.compress(b"a"), "bzip2-compressed"),
        (lzma.compress(b""), "xz-compressed"),
        (b"%PDF-1.7\n%\xe2\xe3", "a PDF document"),
        (b"SQLite format 3\0" + bytes(90), "a SQLite database"),
        (pickle.dumps([{"text": "a"}]), "a pickle"),
        (b"\x40\0\0\0\0\0\0\0" + b'{"t":{"dtype":"F32"}}', "a safetensors file"),
        (bytes(5), "only zero bytes (NUL), as in a file that was never written to its end"),
        (bytes(3_000_000), "only zero bytes (NUL), as in a file that was never written to its end"),
        (bytes(10) + TEXT.encode(), "zero bytes (NUL), and then something else"),
        (random.Random(1).randbytes(5_000), "binary data of an unknown kind"),
        (b"\x1e" + TEXT.encode().replace(b"\n{", b"\n\x1e{"), "a JSON text sequence (RFC 7464)"),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            "a Git LFS pointer instead of the file (git lfs pull gets it)",
        ),
        (b"x" * 257 + b"ustar\0", "a tar archive"),
    ],
)
def test_other_files_are_refused_by_their_nature(data: bytes, nature: str) -> None:
    reason = f"the file is not UTF-8 text at byte 0: it is {nature}; {EXPECTED}"
    assert only_bad(data) == BadRow(file="t", line=None, reason=reason)
    assert form(data) == nature


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (b"prompt,completion\na,b\nc,d\n", "CSV"),
        (b'\xef\xbb\xbfid,text\n1,"{""a"": 1}"\n', "CSV"),
        (b"prompt;x,y\ncaf\xe9;b\n", "CSV"),
        (b"prompt\tcompletion\na\tb\n", "tab-separated values"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\n <HTML>\n{}", "HTML"),
        (b"<?xml version='1.0'?>", "XML or HTML"),
        (b"- text: a\n- text: b\n", "plain text: no line is JSON"),
    ],
)
def test_other_texts_are_refused_once(data: bytes, looks: str) -> None:
    reason = f"the file is not JSON at byte 0: it looks like {looks}; {EXPECTED}"
    assert only_bad(data) == BadRow(file="t", line=None, reason=reason)


def test_a_line_of_text_before_rows_is_a_bad_row() -> None:
    rows, bad = read(b'exported, today\n{"text": "a"}\n')
    assert [row.line for row in rows] == [2]
    assert [row.line for row in bad] == [1]
    assert only_bad(b"nonsense\n").line == 1


def test_a_tail_of_zero_bytes_is_told_with_its_place() -> None:
    rows, bad = read(b'{"text": "a"}\n' + bytes(4096))
    assert [row.line for row in rows] == [1]
    assert [(row.line, row.reason) for row in bad] == [(2, "is only zero bytes (NUL), from byte 14 of the file on")]


def test_a_byte_that_is_not_utf8_is_named_with_its_place() -> None:
    rows, bad = read(b'{"text": "a"}\n{"text": "caf\xe9"}\n{"text": "b"}\n')
    assert [row.line for row in rows] == [1, 3]
    assert [(row.line, row.reason) for row in bad] == [(2, "is not UTF-8: byte 0xE9 at byte 27 of the file")]
    assert "byte 0xE9" in only_bad(b'[{"text": "caf\xe9"}]').reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"},', ["column 14", "comma"]),
        ('{"text": "a"}{"text": "b"}', ["column 14", "more than one value"]),
        ('{"text": "secret', ["ends too early"]),
        ('{"messages": [', ["ends too early"]),
        ('{"text" "a"}', ["column 9", "colon"]),
        ("{'text': 'a'}", ["column 2", "double quotes"]),
        ('{"text": "a\tb"}', ["control character"]),
        (r'{"text": "\x41"}', ["backslash"]),
        ("nonsense", ["column 1"]),
        ("[1, 2]", ["element"]),
        ("5", ["a number"]),
        ('"text"', ["a string"]),
        ("true", ["a boolean"]),
        ("null", ["null"]),
        ('{"text": "a", "n": NaN}', ["NaN"]),
        ('{"text": "a", "n": -Infinity}', ["-Infinity"]),
        ('{"text": "a", "text": "b"}', ["`text` twice"]),
        ('{"m": {"k": 1, "k": 1}}', ["`k` twice"]),
        (r'{"text": "\ud800"}', ["surrogate"]),
        (r'{"text": "\udc00\ud800"}', ["surrogate"]),
        ('{"a":' * 200_000, ["nested"]),
        ('{"a":' + "[" * 3_000 + "]" * 3_000 + "}", ["nested"]),
    ],
)
def test_a_bad_line_is_told_with_its_number_and_the_rest_is_read(line: str, words: list[str]) -> None:
    rows, bad = read(f'{{"text": "first"}}\n{line}\n{{"text": "last"}}\n'.encode())
    if words == ["element"]:
        words = ["a list, not a JSON object"]
    assert [row.line for row in rows] == [1, 3]
    assert [row.line for row in bad] == [2]
    assert all(word in bad[0].reason for word in words), bad[0].reason
    assert "secret" not in bad[0].reason


def test_surrogate_pairs_and_huge_numbers_are_fine() -> None:
    rows, bad = read(b'{"text": "\\ud83d\\ude00", "n": ' + b"9" * 9_000 + b"}")
    assert bad == []
    assert rows[0].value["text"] == "😀"


def test_an_unprintable_key_is_not_repeated() -> None:
    assert "secret" not in only_bad(b'{"secret\\n": 1, "secret\\n": 2}').reason


def test_a_json_array_counts_elements() -> None:
    rows, bad = read(b'\n [\n  {"text": "a"},\n  5,\n  {"text": "b", "text": "c"},\n  {"text": "d"}\n]\n')
    assert [(row.line, row.value["text"]) for row in rows] == [(1, "a"), (4, "d")]
    assert [row.line for row in bad] == [2, 3]


def test_a_broken_array_names_element_line_and_column() -> None:
    rows, bad = read(b'[\n  {"text": "a"},\n  {"text" "b"},\n  {"text": "c"}]')
    assert [row.line for row in rows] == [1]
    assert [(row.line, row.reason) for row in bad] == [
        (2, "is not JSON at line 3, column 11 of the file: a colon is missing; what follows was not read")
    ]
    assert [row.line for row in read(b'[{"text": "a"}')[1]] == [1]
    assert [row.line for row in read(b'[{"text": "a"},]')[1]] == [2]


def test_lists_on_lines_are_lines() -> None:
    rows, bad = read(b'[{"role": "user"}]\n[{"role": "user"}]\n{"text": "a"}')
    assert [row.line for row in rows] == [3]
    assert [row.line for row in bad] == [1, 2]


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",: \n\r\\u0041d8tex\ufeff', max_size=60).map(str.encode))
def test_no_bytes_raise(data: bytes) -> None:
    rows, bad = read(data)
    lines = {row.line for row in rows}
    assert rows or bad
    assert len(lines) == len(rows)
    assert not lines & {row.line for row in bad}
    assert all(1 <= line <= data.count(b"\n") + data.count(b",") + 1 for line in lines)
