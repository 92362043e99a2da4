"""JSON values of a trace: decoded one at a time, with what JSON allows but a trace must not have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from stepctl.traces.rows import BadRow

BLANK = " \t\r\n"
BOM = "\ufeff"
NESTED = "is nested too deeply"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_UNCLOSED = "a string is not closed"
_SYNTAX = {
    "Unterminated string starting at": _UNCLOSED,
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Illegal trailing comma before end of object": "a comma stands before the closing bracket",
    "Illegal trailing comma before end of array": "a comma stands before the closing bracket",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting value": "a value is missing",
    "Invalid control character at": "a control character stands in a string (write it as \\n, \\t or \\u00..)",
}
_WRAPPERS = ("data", "rows", "examples", "items", "records", "samples", "train")
_ABOUT = {"version", "name", "description", "license", "split", "source", "count", "total", "metadata", "info"}


class RawRow(Struct, frozen=True):
    """One object of a trace.

    ``line`` is the physical line on which it begins; in a JSON array the element's number, in Parquet the row's.
    """

    file: str
    line: int
    value: dict[str, Any]


class Syntax(Exception):
    """Not JSON at ``position`` of the text that was decoded. ``early``: the text ends before the value does."""

    def __init__(self, reason: str, position: int, *, early: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.position, self.early = reason, position, early


def printable(key: str) -> str:
    """``key`` when it is short and plain enough to be shown, else a stand-in."""
    return key if re.fullmatch(r"[A-Za-z0-9_.$\[\] -]{1,40}", key) else "(a long or unusual name)"


def kind(value: object) -> str:
    """What a JSON value is, in words."""
    names = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "of an unknown type")


@dataclass
class Decoder:
    """Decodes one JSON value at a time."""

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
            Syntax: no JSON value is there.
        """
        self.flaws.clear()
        try:
            value, end = self._json.raw_decode(text, position)
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated") or not text[error.pos :].strip(BLANK):
                what = _UNCLOSED if error.msg.startswith("Invalid control") else _SYNTAX.get(error.msg, "it is cut off")
                raise Syntax(f"the row ends too early: {what}", error.pos, early=True) from None
            reason = "a backslash is not followed by what JSON allows" if "escape" in error.msg else "a value is broken"
            raise Syntax(_SYNTAX.get(error.msg, reason), error.pos) from None
        except RecursionError:
            raise Syntax(NESTED, position) from None
        flaw = self.flaws[0] if self.flaws else None
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


def row(name: str, line: int, value: Any, flaw: str | None) -> RawRow | BadRow:
    """A decoded value as a row, or why it is none."""
    if flaw is None and isinstance(value, dict):
        if wrapper := _wrapper(value):
            flaw = f"holds the rows in a list under `{wrapper}`: give that list itself (jq .{wrapper} makes it)"
        else:
            return RawRow(name, line, value)
    return BadRow(file=name, line=line, reason=flaw or f"is {kind(value)}, not a JSON object")


def _wrapper(value: Mapping[str, Any]) -> str | None:
    """The only column of an object besides what tells about a file, when it is a list of objects under a usual name."""
    for name in _WRAPPERS:
        held = value.get(name)
        if held and isinstance(held, list) and all(isinstance(each, dict) and "role" not in each for each in held):
            return name if value.keys() - {name} <= _ABOUT else None
    return None


def not_utf8(byte: int, position: int, whole: str) -> str:
    """The reason for a byte that no UTF-8 text has."""
    return f"is not UTF-8: byte 0x{byte:02X} at byte {position} of the {whole}"
