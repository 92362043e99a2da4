"""One JSON array, element by element."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any

from stepctl.traces.formats.blocks import BLOCK, LIMIT, TOO_LONG, Blocks
from stepctl.traces.formats.lines import SPACE
from stepctl.traces.formats.values import BOM, NESTED, Decoder, RawRow, Syntax, not_utf8, row
from stepctl.traces.rows import BadRow

_STOPPED = "what follows was not read"
_TOKEN = 16
"""Characters at the end of what was read that a number, a literal or an escape may go on from."""
_ESCAPED = re.compile("[\udc80-\udcff]")
_STRUCTURE = re.compile(r"[{}\[\],]")
_NO_QUOTE = re.compile(r'[^"]*')
_IN_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""Up to the closing quote, or to the end of the text: half an escape there is not matched."""


def read_array(name: str, blocks: Blocks) -> Iterator[RawRow | BadRow]:
    """Each element; up to the first one that is not JSON, after which elements cannot be told apart."""
    window, decoder, element = _Window(blocks), Decoder(), 0
    window.skip_blank()
    window.position += 1
    while True:
        if window.skip_blank() == "]" and element == 0:
            break
        element += 1
        try:
            value, flaw = _element(window, decoder)
            if window.skip_blank() not in (",", "]"):
                early = not window.skip_blank()
                raise Syntax("a comma or a closing bracket is missing", window.position, early=early)
        except Syntax as error:
            # What is cut off by damage is not told again: the damage is.
            if not error.early or blocks.damage is None:
                yield BadRow(file=name, line=element, reason=_broken(window, error), rest_unread=True)
            return
        yield row(name, element, value, flaw)
        window.position += 1
        if window.text[window.position - 1] == "]":
            break
    if element == 0:
        window.position += 1
    if window.skip_blank():
        yield BadRow(file=name, line=None, reason="text follows the end of the JSON array")


def _element(window: _Window, decoder: Decoder) -> tuple[Any, str | None]:
    """The next element and its first flaw; the window is behind it then."""
    while True:
        text, position = window.text, window.position
        try:
            value, end, flaw = decoder.decode(text, position)
        except Syntax as error:
            at_end = error.early or error.position + _TOKEN > len(text)
            if error.reason == NESTED or not at_end or window.ended:
                raise Syntax(error.reason, error.position, early=at_end) from None
            if len(text) - position <= LIMIT:
                window.more()
                continue
            _skip(window)
            if window.position == len(window.text):
                raise Syntax(TOO_LONG, window.position) from None
            return None, TOO_LONG
        if end + _TOKEN > len(text) and window.more():
            continue
        if end - position > LIMIT:
            flaw = TOO_LONG
        elif window.dirty and (strange := _ESCAPED.search(text, position, end)):
            flaw = window.not_utf8(strange.start())
        window.position = end
        return value, flaw


def _skip(window: _Window) -> None:
    """Pass over an element without holding it, up to the comma or bracket behind it."""
    depth, quoted = 0, False
    while True:
        text, start = window.text, window.position
        end = (_IN_STRING if quoted else _NO_QUOTE).match(text, start).end()  # type: ignore[union-attr]
        if not quoted:
            closed = text.count("}", start, end) + text.count("]", start, end)
            if closed >= depth:
                end, depth = _close(text, start, end, depth)
                if depth < 0:
                    window.position = end
                    return
            else:
                depth += text.count("{", start, end) + text.count("[", start, end) - closed
        window.position = end
        if text[end : end + 1] == '"':
            window.position += 1
            quoted = not quoted
        elif not window.more():
            window.position = len(window.text)
            return


def _close(text: str, start: int, end: int, depth: int) -> tuple[int, int]:
    """Where the element ends, and -1; or ``end`` and the depth there."""
    for found in _STRUCTURE.finditer(text, start, end):
        mark = found.group()
        if depth == 0 and mark in ",]}":
            return found.start(), -1
        if mark != ",":
            depth += 1 if mark in "{[" else -1
    return end, depth


def _broken(window: _Window, error: Syntax) -> str:
    if error.reason in (NESTED, TOO_LONG):
        return f"{error.reason}; {_STOPPED}"
    if window.dirty and _ESCAPED.match(window.text, error.position):
        return f"{window.not_utf8(error.position)}; {_STOPPED}"
    line, column = window.place(error.position)
    return f"is not JSON at line {line}, column {column} of the {window.whole}: {error.reason}; {_STOPPED}"


class _Window:
    """Text from ``position`` of what is held on. A byte that is no UTF-8 stands in it as an escape (``dirty``)."""

    def __init__(self, blocks: Blocks) -> None:
        self.text, self.position = "", 0
        self.ended = self.dirty = False
        self.whole = blocks.whole
        self._blocks = iter(blocks)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._lines = self._column = self._bytes = 0
        self._first = True

    def more(self) -> bool:
        """Let go of what is before ``position``, and hold twice of what is left (up to LIMIT): texts are moved little.

        Returns:
            Whether there was more.
        """
        if self.ended:
            return False
        self._let_go()
        held = len(self.text)
        wanted = max(BLOCK, min(held, LIMIT + BLOCK - held))
        parts, size = [self.text], 0
        while size < wanted and not self.ended:
            block = next(self._blocks, None)
            parts.append(self._decode(block))
            size += len(parts[-1])
        self.text = "".join(parts)
        if self._first:
            self._first = False
            self.position = len(BOM) if self.text.startswith(BOM) else 0
            self._column = -self.position
        return True

    def skip_blank(self) -> str:
        """Go to the next character that is not white space, and say which it is: empty at the end."""
        while True:
            self.position = SPACE.match(self.text, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.text) or not self.more():
                return self.text[self.position : self.position + 1]

    def place(self, position: int) -> tuple[int, int]:
        """Line and column of a position, both from 1 on."""
        lines = self.text.count("\n", 0, position)
        column = position - self.text.rfind("\n", 0, position) if lines else self._column + position + 1
        return self._lines + lines + 1, column

    def not_utf8(self, position: int) -> str:
        """The reason for an escaped byte at a position."""
        before = self.text[:position].encode(errors="surrogateescape")
        return not_utf8(ord(self.text[position]) - 0xDC00, self._bytes + len(before), self.whole)

    def _let_go(self) -> None:
        line, column = self.place(self.position)
        self._bytes += len(self.text[: self.position].encode(errors="surrogateescape"))
        self._lines, self._column = line - 1, column - 1
        self.text, self.position = self.text[self.position :], 0

    def _decode(self, block: bytes | None) -> str:
        self.ended = block is None
        state = self._decoder.getstate()
        try:
            return self._decoder.decode(block or b"", self.ended)
        except UnicodeDecodeError:
            self.dirty = True
            self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
            self._decoder.setstate(state)
            return self._decoder.decode(block or b"", self.ended)
