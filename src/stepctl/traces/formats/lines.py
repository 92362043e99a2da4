"""JSON lines, and pretty-printed JSON objects one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stepctl.traces.formats.blocks import LIMIT, TOO_LONG, Blocks
from stepctl.traces.formats.values import BLANK, BOM, NESTED, Decoder, RawRow, Syntax, not_utf8, row
from stepctl.traces.rows import BadRow

SPACE = re.compile(r"[ \t\r\n]*")
_OPENS = re.compile(rb"\n(?=(?:\xef\xbb\xbf)?\{)")
"""The newline before an object. A byte-order mark is there when files were joined."""
_HALF_A_BOUNDARY = re.compile(rb"(?:\n(?:\xef(?:\xbb\xbf?)?)?)?\Z")


class _Piece(NamedTuple):
    """Bytes from physical line ``line`` on: None when they are too many. ``ended``: they are not cut off."""

    line: int
    offset: int
    data: bytes | None
    ended: bool


def read_lines(name: str, blocks: Blocks) -> Iterator[RawRow | BadRow]:
    """Each line that is not blank."""
    return _read(name, blocks, _pieces(blocks), _in_line)


def read_pretty(name: str, blocks: Blocks) -> Iterator[RawRow | BadRow]:
    """Each object that begins with a bracket in column 0 of a line and ends before the next of these."""
    return _read(name, blocks, _pieces(blocks, _OPENS), _in_object)


def _read(
    name: str, blocks: Blocks, pieces: Iterator[_Piece], reason: Callable[[_Piece, str, Syntax, str], str]
) -> Iterator[RawRow | BadRow]:
    decoder = Decoder()
    for piece in pieces:
        line, offset, data, ended = piece
        if data is None:
            yield BadRow(file=name, line=line, reason=TOO_LONG)
            continue
        try:
            text = data.decode().removeprefix(BOM)
            start = SPACE.match(text).end()  # type: ignore[union-attr]
            if start == len(text):
                continue
            if start:
                line += text.count("\n", 0, start)
            value, end, flaw = decoder.decode(text, start)
            if end < len(text) and (rest := text[end:].strip(BLANK)):
                raise Syntax("it ends with a comma" if rest == "," else "", text.index(rest[0], end))
            yield row(name, line, value, flaw)
        except UnicodeDecodeError as error:
            if ended or blocks.damage is None:
                where = offset + error.start
                yield BadRow(file=name, line=line, reason=not_utf8(data[error.start], where, blocks.whole))
        except Syntax as error:
            # What is cut off by damage is not told again: the damage is.
            if ended or blocks.damage is None:
                yield BadRow(file=name, line=line, reason=reason(piece, text, error, blocks.whole))


def _in_line(piece: _Piece, text: str, error: Syntax, whole: str) -> str:
    if error.reason == NESTED:
        return NESTED
    if not text.strip("\0" + BLANK):
        return f"is only zero bytes (NUL), from byte {piece.offset} of the {whole} on"
    what = error.reason or "it has more than one value, or other text, on the line"
    return f"is not JSON at column {error.position + 1}: {what}"


def _in_object(piece: _Piece, text: str, error: Syntax, whole: str) -> str:
    if error.reason == NESTED:
        return NESTED
    line = piece.line + text.count("\n", 0, error.position)
    column = error.position - text.rfind("\n", 0, error.position)
    what = error.reason or "other text follows the object"
    return f"is not JSON at line {line}, column {column} of the {whole}: {what}"


def _pieces(blocks: Blocks, boundary: re.Pattern[bytes] | None = None) -> Iterator[_Piece]:
    """Physical lines, or what lies between newlines that ``boundary`` matches. Only up to LIMIT is held of one."""
    line, offset = 1, 0
    parts: list[bytes] = []
    held, size, inside = b"", 0, 0
    for block in blocks:
        if boundary is None:
            found = block.split(b"\n")
        else:
            text = held + block
            held = _HALF_A_BOUNDARY.search(text[-4:]).group()  # type: ignore[union-attr]
            found = boundary.split(text[: len(text) - len(held)])
        last = found.pop()
        for data in found:
            if boundary is not None:
                inside += data.count(b"\n")
            size += len(data)
            if parts or size > LIMIT:
                parts.append(data)
                yield _Piece(line, offset, b"".join(parts) if size <= LIMIT else None, True)
                parts = []
            else:
                yield _Piece(line, offset, data, True)
            line, offset, size, inside = line + inside + 1, offset + size + 1, 0, 0
        size += len(last)
        if boundary is not None:
            inside += last.count(b"\n")
        if size > LIMIT:
            parts = []
        elif last:
            parts.append(last)
    if size + len(held):
        parts.append(held)
        yield _Piece(line, offset, b"".join(parts) if size <= LIMIT else None, False)
