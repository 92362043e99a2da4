"""From the bytes of a trace file to rows, whatever the bytes are.

JSON lines in UTF-8, or one JSON array. Nothing here raises for what a file holds: each flaw is a :class:`BadRow`, and
no reason holds text of a row (names of keys at most).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from stepctl.traces.rows import BadRow, Source

BLANK = " \t\r\n"
BOM = "\ufeff"
EMPTY = "the trace has no rows"
NESTED = "is nested too deeply"
_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_NATURES = (
    (b"\x1f\x8b", "gzip-compressed"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "a Parquet file"),
    (b"\x28\xb5\x2f\xfd", "zstandard-compressed"),
    (b"\xff\xfe\x00\x00", "UTF-32 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_SYNTAX = {
    "Unterminated string starting at": "a string is not closed",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Illegal trailing comma before end of object": "a comma stands before the closing bracket",
    "Illegal trailing comma before end of array": "a comma stands before the closing bracket",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting value": "a value is missing",
    "Invalid control character at": "a control character stands in a string (write it as \\n, \\t or \\u00..)",
}


@dataclass(frozen=True)
class RawRow:
    """One JSON object of a trace. ``line`` is the physical line, or the element's number in a JSON array."""

    file: str
    line: int
    value: dict[str, Any]


class _Syntax(Exception):
    """Not JSON at ``position`` of the text that was decoded."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.reason, self.position = reason, position


def printable(key: str) -> str:
    """``key`` when it is short and plain enough to be shown, else a stand-in."""
    return key if re.fullmatch(r"[A-Za-z0-9_.$\[\] -]{1,40}", key) else "(a long or unusual name)"


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "of an unknown type")


@dataclass
class _Decoder:
    """Decodes one JSON value at a time and notes what JSON allows but a trace must not have."""

    flaws: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._json = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=self._constant, parse_int=self._integer
        )

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self.flaws.append(f"has the name `{printable(twice)}` twice in one object")
        return value

    def _constant(self, name: str) -> None:
        self.flaws.append(f"has {name}, which is not JSON")

    @staticmethod
    def _integer(digits: str) -> int | float:
        # int() refuses thousands of digits; such a number is never in a column that is used.
        return int(digits) if len(digits) < 1000 else float(digits)

    def decode(self, text: str, position: int) -> tuple[Any, int, str | None]:
        """The value at ``position``, where it ends, and its first flaw.

        Raises:
            _Syntax: no JSON value is there.
        """
        self.flaws.clear()
        try:
            value, end = self._json.raw_decode(text, position)
        except json.JSONDecodeError as error:
            if not text[error.pos :].strip(BLANK) or error.msg.startswith("Unterminated"):
                raise _Syntax("the row ends too early: " + _SYNTAX.get(error.msg, "it is cut off"), error.pos) from None
            reason = "a backslash is not followed by what JSON allows" if "escape" in error.msg else "a value is broken"
            raise _Syntax(_SYNTAX.get(error.msg, reason), error.pos) from None
        except RecursionError:
            raise _Syntax(NESTED, position) from None
        flaw = next(iter(self.flaws), None)
        if flaw is None and _SURROGATE_ESCAPE.search(text, position, end):
            flaw = _surrogate(value)
        return value, end, flaw


def _surrogate(value: Any) -> str | None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "has half of a surrogate pair (\\ud800 to \\udfff alone), which is no character"
    except RecursionError:
        return NESTED
    return None


def _nature(data: bytes) -> str | None:
    """What ``data`` is when it is no UTF-8 text at all."""
    for magic, nature in _NATURES:
        if data.startswith(magic):
            return nature
    if len(data) > 3 and 0 in data[:2] and data[:2] != b"\0\0":
        return "UTF-16 text without a byte-order mark"
    return None


def parse(source: Source) -> tuple[list[RawRow], list[BadRow]]:
    """Read every row of a trace file.

    Returns:
        The rows that are JSON objects, and what is bad, both in file order. A file with neither has one bad row
        without a line.
    """
    if nature := _nature(source.data):
        reason = f"the file is not UTF-8 text at byte 0: it is {nature}; JSON lines in UTF-8 are expected"
        return [], [BadRow(file=source.name, line=None, reason=reason)]
    start = source.data.removeprefix(BOM.encode()).lstrip(BLANK.encode())
    rows, bad = _array(source) if start.startswith(b"[") else _lines(source)
    if not rows and not bad:
        bad = [BadRow(file=source.name, line=None, reason=EMPTY)]
    return rows, bad


def _not_utf8(error: UnicodeDecodeError, offset: int) -> str:
    return f"is not UTF-8: byte 0x{error.object[error.start]:02X} at byte {offset + error.start} of the file"


def _row(name: str, line: int, value: Any, flaw: str | None) -> RawRow | BadRow:
    if flaw is None and isinstance(value, dict):
        return RawRow(name, line, value)
    return BadRow(file=name, line=line, reason=flaw or f"is {kind(value)}, not a JSON object")


def _lines(source: Source) -> tuple[list[RawRow], list[BadRow]]:
    rows: list[RawRow] = []
    bad: list[BadRow] = []
    decoder, offset, strange = _Decoder(), 0, 0
    for number, raw in enumerate(source.data.split(b"\n"), start=1):
        at, offset = offset, offset + len(raw) + 1
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            bad.append(BadRow(file=source.name, line=number, reason=_not_utf8(error, at)))
            continue
        if not (text := text.removeprefix(BOM)).strip(BLANK):
            continue
        row = _line(decoder, source.name, number, text)
        if isinstance(row, RawRow):
            rows.append(row)
        else:
            bad.append(row)
            strange += not text.lstrip(BLANK).startswith(("{", "[")) and "not JSON" in row.reason
    if not rows and strange == len(bad) and strange > 1:
        reason = "no line of the file is JSON (a CSV file?): one JSON object on each line is expected"
        bad = [BadRow(file=source.name, line=None, reason=reason)]
    return rows, bad


def _line(decoder: _Decoder, name: str, number: int, text: str) -> RawRow | BadRow:
    start = _SPACE.match(text).end()  # type: ignore[union-attr]
    try:
        value, end, flaw = decoder.decode(text, start)
    except _Syntax as error:
        if error.reason == NESTED:
            return BadRow(file=name, line=number, reason=NESTED)
        return BadRow(file=name, line=number, reason=f"is not JSON at column {error.position + 1}: {error.reason}")
    if rest := text[end:].strip(BLANK):
        what = "ends with a comma" if rest == "," else "has more than one value, or other text, on the line"
        column = text.index(rest[0], end) + 1
        return BadRow(file=name, line=number, reason=f"is not JSON at column {column}: it {what}")
    return _row(name, number, value, flaw)


def _array(source: Source) -> tuple[list[RawRow], list[BadRow]]:
    try:
        text = source.data.decode().removeprefix(BOM)
    except UnicodeDecodeError as error:
        reason = f"the file {_not_utf8(error, 0)}"
        return [], [BadRow(file=source.name, line=None, reason=reason)]
    rows: list[RawRow] = []
    bad: list[BadRow] = []
    decoder, position, element = _Decoder(), text.index("[") + 1, 0
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        if element == 0 and text.startswith("]", position):
            break
        element += 1
        try:
            value, end, flaw = decoder.decode(text, position)
            position = _SPACE.match(text, end).end()  # type: ignore[union-attr]
            if text[position : position + 1] not in (",", "]"):
                raise _Syntax("a comma or a closing bracket is missing", position)
        except _Syntax as error:
            bad.append(BadRow(file=source.name, line=element, reason=_broken(text, error)))
            return rows, bad
        row = _row(source.name, element, value, flaw)
        rows.append(row) if isinstance(row, RawRow) else bad.append(row)
        if text[position] == "]":
            break
        position += 1
    if text[position + 1 :].strip(BLANK):
        if "\n" not in text[:position].lstrip(BLANK):
            return _lines(source)
        bad.append(BadRow(file=source.name, line=None, reason="text follows the end of the JSON array"))
    return rows, bad


def _broken(text: str, error: _Syntax) -> str:
    if error.reason == NESTED:
        return f"{NESTED}; what follows was not read"
    line = text.count("\n", 0, error.position) + 1
    column = error.position - text.rfind("\n", 0, error.position)
    return f"is not JSON at line {line}, column {column} of the file: {error.reason}; what follows was not read"
