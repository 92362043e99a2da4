"""Parquet, batch by batch, by pyarrow: imported only here, and only when there is such a file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from itertools import repeat
from numbers import Real
from typing import Any, BinaryIO

from stepctl.traces.formats.blocks import LIMIT, TOO_LONG
from stepctl.traces.formats.values import NESTED, RawRow, printable
from stepctl.traces.rows import BadRow

_ROWS = 256
_BYTES = 8 << 20
_MISSING = (
    "the file is a Parquet file, and pyarrow, which reads them, is not installed: pip install 'stepctl[parquet]' "
    "(or give the rows as JSON lines)"
)


class _NotText:
    """Stands for a text that is not UTF-8."""


def read_parquet(name: str, file: BinaryIO) -> Iterator[RawRow | BadRow]:
    """Each row, as what JSON has: dates as text, bytes as text where they are UTF-8, no nulls in nested objects."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        yield BadRow(file=name, line=None, reason=_MISSING)
        return
    # pyarrow's own words are not repeated: they may hold values.
    errors = (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError)
    size = file.seek(0, 2)
    file.seek(0)
    row = 0
    try:
        # Else a column of a whole row group is read at once.
        settings = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
        opened = pyarrow.parquet.ParquetFile(file, **settings)
        if twice := _named_twice(opened.schema_arrow):
            reason = f"the Parquet file has the name `{printable(twice)}` twice at one place"
            yield BadRow(file=name, line=None, reason=reason)
            return
        if not opened.schema_arrow.names:
            yield BadRow(file=name, line=None, reason="the Parquet file has no columns")
            return
        told = opened.metadata.num_rows
        for batch in _batches(opened):
            for value in _rows(batch, errors):
                row += 1
                yield RawRow(name, row, value) if isinstance(value, dict) else BadRow(file=name, line=row, reason=value)
    except errors:
        reason = f"the Parquet file ({size} bytes) is cut off or damaged: "
        reason += f"it could be read up to row {row}" if row else "none of its rows can be read"
        yield BadRow(file=name, line=None, reason=reason)
        return
    if row != told:
        yield BadRow(file=name, line=None, reason=f"the Parquet file is damaged: it has {row} rows and tells of {told}")


def _batches(opened: Any) -> Iterator[Any]:
    """Group by group, so that a damaged one takes none of the others along."""
    for number in range(opened.num_row_groups):
        group = opened.metadata.row_group(number)
        rows = int(_BYTES * group.num_rows / max(group.total_byte_size, 1))
        yield from opened.iter_batches(max(1, min(_ROWS, rows)), row_groups=[number], use_threads=False)


def _named_twice(fields: Any) -> str | None:
    """A name that one object would have twice."""
    names = [fields.field(number).name for number in range(_children(fields))]
    for number, found in enumerate(names):
        if found in names[:number]:
            return str(found)
    for number in range(len(names)):
        if twice := _named_twice(fields.field(number).type):
            return twice
    return None


def _children(fields: Any) -> int:
    return len(fields.names) if hasattr(fields, "names") else int(fields.num_fields)


def _rows(batch: Any, errors: tuple[type[Exception], ...]) -> Iterator[dict[str, Any] | str]:
    """Each row as an object, or the reason why it is none."""
    small = batch.nbytes <= 2 * _BYTES
    for piece in [batch] if small else map(batch.slice, range(batch.num_rows), repeat(1)):
        columns = [_column(piece.column(number), errors) for number in range(piece.num_columns)]
        for values in zip(*columns, strict=True):
            row = dict(zip(batch.schema.names, values, strict=True))
            try:
                strange = next((key for key, value in row.items() if _has_strange_text(value)), None)
                long = not small and _size(row) > LIMIT
            except RecursionError:
                yield NESTED
                continue
            yield (
                row
                if strange is None and not long
                else f"is not UTF-8 in `{printable(strange)}`"
                if strange
                else TOO_LONG
            )


def _column(column: Any, errors: tuple[type[Exception], ...]) -> list[Any]:
    try:
        return [_plain(value) for value in column.to_pylist()]
    except errors:
        return [_scalar(scalar, errors) for scalar in column]


def _scalar(scalar: Any, errors: tuple[type[Exception], ...]) -> Any:
    """A value as far as it can be had: a text that is not UTF-8 is marked, what Python cannot hold is null."""
    import pyarrow

    try:
        return _plain(scalar.as_py())
    except errors:
        if isinstance(scalar, pyarrow.StructScalar):
            pairs = ((key, _scalar(value, errors)) for key, value in scalar.items())
            return {key: value for key, value in pairs if value is not None}
        if isinstance(scalar, pyarrow.ListScalar | pyarrow.LargeListScalar | pyarrow.FixedSizeListScalar):
            return [_scalar(each, errors) for each in scalar.values]
        return _NotText() if isinstance(scalar, pyarrow.StringScalar | pyarrow.LargeStringScalar) else None


def _plain(value: Any) -> Any:
    """A value of JSON's kinds. A null in a nested object is left out: Parquet has one wherever a key is absent."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        pairs = value and all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) for each in value)
        return _plain(dict(value)) if pairs else [_plain(inner) for inner in value]
    if isinstance(value, Real | Decimal):
        return None if math.isnan(value) else float(value)
    return _text(value) if isinstance(value, bytes) else str(value)


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"bytes": len(value)}


def _has_strange_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_strange_text, value.values()))
    return any(map(_has_strange_text, value)) if isinstance(value, list) else isinstance(value, _NotText)


def _size(value: Any) -> int:
    """Characters of all texts."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else len(value) if isinstance(value, str) else 0
