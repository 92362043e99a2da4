"""Which form a file has, told from its content, and how each form of JSON text is read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.traces.files import SmallBlocks, form, read, told

from stepctl.traces.formats import array, lines
from stepctl.traces.formats.blocks import LIMIT, TOO_LONG
from stepctl.traces.read import RawRow, read_rows
from stepctl.traces.rows import BadRow, FileSource, Source, digest

ROWS = [{"text": "a"}, {"text": 'b"\\ é 😀 {[,]}\n', "n": [1, -2.5e-3, True, None]}, {"text": "c", "deep": {"d": [{}]}}]
JQ = "\n".join(json.dumps(row, indent=2, ensure_ascii=False) for row in ROWS).encode()
LINES = "\n".join(json.dumps(row) for row in ROWS).encode()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (LINES, "JSON lines"),
        (b"\xef\xbb\xbf\n\n" + LINES.replace(b"\n", b"\r\n"), "JSON lines"),
        (json.dumps(ROWS).encode(), "a JSON array"),
        (b"\n" * 600_000 + json.dumps(ROWS, indent=1).encode(), "a JSON array"),
        (JQ, "pretty-printed JSON objects"),
        (b"\xef\xbb\xbf \r\n" + JQ.replace(b"\n", b"\r\n"), "pretty-printed JSON objects"),
        (LINES.replace(b'{"text": "a"}', b'{ "text":\n "a" }\n\n'), "pretty-printed JSON objects"),
        (LINES.replace(b'{"text": "c",', b'{\n "text": "c",'), "pretty-printed JSON objects"),
    ],
)
def test_the_form_is_told_from_the_content_and_every_row_is_read(data: bytes, name: str) -> None:
    rows, bad = read(data)
    assert form(data) == name
    assert [row.value for row in rows] == ROWS
    assert bad == []


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "JSON lines"),
        (b'{"text": "a"}', "JSON lines"),
        (b'{"text": "a"', "JSON lines"),
        (b"{", "JSON lines"),
        (b"[", "a JSON array"),
        (b'{\n  "text": "a"\n}', "pretty-printed JSON objects"),
        (b'{\n  "text": "a"', "pretty-printed JSON objects"),
    ],
)
def test_short_files_have_a_form_too(data: bytes, name: str) -> None:
    assert form(data) == name


def test_a_file_on_disk_is_read_as_often_as_one_likes(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(LINES)
    source = FileSource(name="rows.csv", path=path)
    reading = read_rows(source)
    assert list(reading) == list(reading)
    assert [row.value for row in reading if isinstance(row, RawRow)] == ROWS
    memory = Source(name="m", data=LINES)
    assert source.sha256() == memory.sha256() == digest(memory)
    assert digest(source, memory) == Source(name="", data=LINES * 2).sha256()


def test_a_pretty_row_has_the_line_on_which_it_begins() -> None:
    data = b"\n  \n" + JQ.replace(b"\n{", b"\n\n{") + b"\n"
    starts = [number for number, line in enumerate(data.split(b"\n"), 1) if line.startswith(b"{")]
    assert told(data) == (starts, [])
    assert told(b'\n \n {\n "text": "a"\n}') == ([3], [])


def test_after_a_broken_pretty_object_the_next_is_read() -> None:
    data = b"""{
  "text": "a"
}
{
  "text": "b",
{
  "text": "c"
}
{
  "text" "d"
}
{
  "text": "e"
},
{ "text": "f" } x
{
  "text": "g"
}
[1]
{
  "text": "caf\xe9"
}
{
  "text": "i"
}
{
  "text": "end
"""
    where = "is not JSON at line"
    assert told(data) == (
        [1, 6, 23],
        [
            (4, f"{where} 5, column 15 of the file: the row ends too early: a name in double quotes is missing"),
            (9, f"{where} 10, column 10 of the file: a colon is missing"),
            (12, f"{where} 14, column 2 of the file: it ends with a comma"),
            (15, f"{where} 15, column 17 of the file: other text follows the object"),
            (16, f"{where} 19, column 1 of the file: other text follows the object"),
            (20, f"is not UTF-8: byte 0xE9 at byte {data.index(bytes([0xE9]))} of the file"),
            (26, f"{where} 27, column 15 of the file: the row ends too early: a string is not closed"),
        ],
    )


def test_a_pretty_file_that_is_joined_of_others_has_marks_inside() -> None:
    one = b'\xef\xbb\xbf{\r\n  "text": "a"\r\n}\r\n'
    assert told(one * 3) == ([1, 4, 7], [])


def test_a_first_line_that_is_cut_off_does_not_make_json_lines_pretty() -> None:
    data = b'{"messages": [\n{"text": "a"}\n{"text": "b"}'
    assert form(data) == "JSON lines"
    assert told(data)[0] == [2, 3]


def test_an_object_around_the_rows_is_refused_with_a_hint() -> None:
    hint = "holds the rows in a list under `data`: give that list itself (jq .data makes it)"
    assert told(json.dumps({"version": 1, "data": ROWS}, indent=2).encode()) == ([], [(1, hint)])
    assert told(b'{"data": [{"text": "a"}]}') == ([], [(1, hint)])
    for other in (b'{"data": [{"role": "user"}]}', b'{"data": ["a"]}', b'{"data": []}', b'{"text": "a", "data": [{}]}'):
        assert told(other) == ([1], [])


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (b'[{"a": 1} {"a": 2}]', 1, 11),
        (b'[{"a": 1},\n{"a": 2]', 2, 8),
        (b'\xef\xbb\xbf[{"a": tru}]', 1, 8),
        (b'[\n{"a": 1},\n\n  {"b" 2}]', 4, 8),
    ],
)
def test_array_flaws_have_a_place_whatever_the_blocks_are(
    data: bytes, line: int, column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array, "BLOCK", 1)
    for step in (1, 2, 3, 1_000):
        found = [row for row in read_rows(SmallBlocks(data, step)) if isinstance(row, BadRow)]
        assert f"line {line}, column {column} of the file" in found[0].reason


def test_an_array_is_read_past_bytes_that_are_not_utf8_and_text_behind_it_is_told() -> None:
    data = '[{"text": "é"}, {"text": "'.encode() + b'\xe9"},\n{"text": "b"}]\n ]'
    assert told(data) == (
        [1, 3],
        [(2, "is not UTF-8: byte 0xE9 at byte 27 of the file"), (None, "text follows the end of the JSON array")],
    )
    assert told(b'[{"text": "a"}, \xe9 ]') == (
        [1],
        [(2, "is not UTF-8: byte 0xE9 at byte 16 of the file; what follows was not read")],
    )


def chunks(seed: int) -> bytes:
    """Rows of every kind, some broken, in a form of JSON text."""
    dice = random.Random(seed)
    rows = [
        dice.choice([*ROWS, 5, 1.5e300, "text \\", [1, 2], None, True, {"t": "😀" * dice.randrange(40)}])
        for _ in range(9)
    ]
    dumped = [json.dumps(row, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, 1])) for row in rows]
    data = bytearray(dice.choice([",", "\n", ",\n"]).join(dumped).encode())
    if dice.random() < 0.5:
        data[dice.randrange(len(data))] = dice.choice(b'\xe9{}[]",x \n\0')
    whole = b"[" + data + b"]" if dice.random() < 0.6 else bytes(data)
    return whole[: len(whole) - dice.choice([0, 0, 0, 1, 7])]


@pytest.mark.parametrize("seed", range(150))
def test_blocks_have_no_bearing_on_what_is_read(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = chunks(seed)
    reading = read_rows(Source(name="t", data=data))
    expected = list(reading)
    monkeypatch.setattr(array, "BLOCK", 1)
    for step in (1, 3, 17):
        # In memory the form is told from the whole head; so it is here.
        small = read_rows(SmallBlocks(data, len(data)))
        small._source = SmallBlocks(data, step)
        assert list(small) == expected


def test_a_row_that_is_too_long_is_refused_by_its_line_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lines, array):
        monkeypatch.setattr(module, "LIMIT", 100)
    monkeypatch.setattr(array, "BLOCK", 1)
    fits, long = json.dumps({"text": "x" * 88}), json.dumps({"text": 'x\\"[}' * 30, "n": [[{}]]})
    more = json.dumps({"text": "x" * 89})
    assert (len(fits), len(more)) == (100, 101)
    rows = [fits, long, '{"text": "a"}', more, fits]
    pretty = [row.replace('{"text"', '{\n"text"', 1) for row in rows]
    # Where the line's end is not counted.
    pretty[0] = pretty[4] = pretty[0].replace(": ", ":", 1)
    for step in (1, 7, 1_000):
        for data, expected in (
            ("\n".join(rows), [1, 2, 3, 4, 5]),
            (f"[{', '.join(rows)}]", [1, 2, 3, 4, 5]),
            ("\n".join(pretty), [1, 3, 5, 7, 9]),
        ):
            reading = read_rows(SmallBlocks(data.encode(), len(data)))
            reading._source = SmallBlocks(data.encode(), step)
            read_here = list(reading)
            assert [row.line for row in read_here] == expected
            assert [isinstance(row, RawRow) for row in read_here] == [True, False, True, False, True]
            assert {row.reason for row in read_here if isinstance(row, BadRow)} == {TOO_LONG}


def test_an_element_that_is_too_long_and_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array, "LIMIT", 100)
    assert told(b'[{"text": "a"}, {"text": "' + b"x" * 300_000) == (
        [1],
        [(2, f"{TOO_LONG}; what follows was not read")],
    )
    assert TOO_LONG == "is longer than 64 MiB of text"
    assert LIMIT == 64 * 1024 * 1024
