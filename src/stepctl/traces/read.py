"""From a trace file to its rows, one at a time, whatever its bytes are.

Nothing here raises for what a file holds: each flaw is a :class:`BadRow`, and no reason holds text of a row (names of
columns at most). Memory is bounded by the longest row, which is bounded itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepctl.traces.formats.array import read_array
from stepctl.traces.formats.blocks import Blocks
from stepctl.traces.formats.lines import read_lines, read_pretty
from stepctl.traces.formats.parquet import read_parquet
from stepctl.traces.formats.sniff import Sniffed, sniff
from stepctl.traces.formats.values import RawRow, printable
from stepctl.traces.rows import BadRow, TraceSource

__all__ = ["EMPTY", "RawRow", "Reading", "parse", "printable", "read_rows"]

EMPTY = "the trace has no rows"
_TEXTS = {"lines": read_lines, "array": read_array, "pretty": read_pretty}


class Reading:
    """The rows of a file, each time it is iterated: those that are objects, and what is bad, in file order.

    A file without either has one bad row, which has no line. ``format`` is the file's form in words.
    """

    def __init__(self, source: TraceSource, sniffed: Sniffed) -> None:
        self.format = sniffed.title
        self._source, self._sniffed = source, sniffed

    def __iter__(self) -> Iterator[RawRow | BadRow]:
        name, (form, packing, _, refusal) = self._source.name, self._sniffed
        if refusal is not None:
            yield BadRow(file=name, line=None, reason=refusal)
            return
        any_row, damage = False, None
        with self._source.open() as file:
            if form == "parquet":
                rows = read_parquet(name, file)
            else:
                blocks = Blocks(file, packing)
                rows = _TEXTS[form](name, blocks)
            for row in rows:
                any_row = True
                yield row
            if form != "parquet":
                damage = blocks.damage
        if damage is not None or not any_row:
            yield BadRow(file=name, line=None, reason=damage or EMPTY)


def read_rows(source: TraceSource) -> Reading:
    """Tell the form of a file from its content, and get ready to read it.

    Raises:
        OSError: the file cannot be opened or read. So may iterating; nothing is raised for what the file holds.
    """
    with source.open() as file:
        return Reading(source, sniff(file))


def parse(source: TraceSource) -> tuple[list[RawRow], list[BadRow]]:
    """All rows of a file, and all that is bad, at once."""
    rows: list[RawRow] = []
    bad: list[BadRow] = []
    for row in read_rows(source):
        rows.append(row) if isinstance(row, RawRow) else bad.append(row)
    return rows, bad
