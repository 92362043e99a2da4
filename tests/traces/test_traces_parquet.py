"""Parquet: values as JSON has them, whatever the column's type; damage told after the rows that can be read."""

from __future__ import annotations

import builtins
import datetime
import decimal
import io
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.traces.files import form, read, told

from stepctl.traces.formats import parquet
from stepctl.traces.formats.blocks import TOO_LONG
from stepctl.traces.judge import judge
from stepctl.traces.read import read_rows
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import BadRow, Source
from stepctl.traces.rules import Rules

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 1}]


def stored(table: pa.Table | list[dict[str, Any]], **settings: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pylist(table), out, **settings)
    return out.getvalue()


def column(values: list[Any], kind: pa.DataType) -> list[Any]:
    """The values as they are read."""
    rows, bad = read(stored(pa.table({"x": pa.array(values, kind)})))
    assert bad == []
    return [row.value["x"] for row in rows]


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_rows_are_objects_with_their_number(codec: str) -> None:
    rows = [{"messages": CHAT, "text": None, "n": number} for number in range(600)]
    data = stored(rows, compression=codec, row_group_size=250)
    assert form(data) == "Parquet"
    found, bad = read(data)
    assert bad == []
    assert [row.line for row in found] == list(range(1, 601))
    assert found[599].value == {"messages": [{"role": "user", "content": "a"}, CHAT[1]], "text": None, "n": 599}


def test_a_chat_in_parquet_trains_like_one_in_json_lines(chatml: TextTokenizer) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    made = [
        judge([Source(name="t", data=data)], Rules(max_length=64), chatml)
        for data in (
            stored(rows),
            b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        )
    ]
    assert made[0].rows == made[1].rows != []


def test_values_are_those_of_json() -> None:
    day = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901)
    assert column([day, None], pa.timestamp("us")) == ["2026-01-02 03:04:05.678901", None]
    assert column([day], pa.timestamp("us", tz="Europe/Oslo"))[0].startswith("2026-01-02 04:04:05.678901")
    assert column([datetime.date(2026, 1, 2)], pa.date32()) == ["2026-01-02"]
    assert column([datetime.time(1, 2)], pa.time64("us")) == ["01:02:00"]
    assert column([datetime.timedelta(days=1)], pa.duration("us")) == ["1 day, 0:00:00"]
    assert column([decimal.Decimal("1.50")], pa.decimal128(5, 2)) == [1.5]
    assert column([1.5, float("nan"), None], pa.float64()) == [1.5, None, None]
    assert column([0.5], pa.float16()) == [0.5]
    assert column([True, None], pa.bool_()) == [True, None]
    assert column([None, None], pa.null()) == [None, None]
    assert column([2**63], pa.uint64()) == [2**63]
    assert column([b"caf\xc3\xa9", b"\xff\xd8\xff", None], pa.binary()) == ["café", {"bytes": 3}, None]
    assert column([b"abcd"], pa.binary(4)) == ["abcd"]
    assert column(["a"], pa.large_string()) == ["a"]
    assert column(["a", "b", "a"], pa.dictionary(pa.int32(), pa.string())) == ["a", "b", "a"]
    assert column([[1, None], [], None], pa.list_(pa.int32())) == [[1, None], [], None]
    assert column([{"a": None, "b": {"c": None}}], pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.int8()})})) == [
        {"b": {}}
    ]
    assert column([[("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int32())) == [{"k": 1}]
    assert column([[(1, "a")]], pa.map_(pa.int32(), pa.string())) == [[[1, "a"]]]
    assert column([uuid.UUID(int=5).bytes], pa.uuid()) == ["00000000-0000-0000-0000-000000000005"]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("us", tz="No/Where"), pa.date32()]
)
def test_dates_that_python_does_not_have_are_null_or_text(kind: pa.DataType) -> None:
    """Beside them everything is read, in lists and objects too."""
    raw = pa.array([1, 2**31 - 1, -(2**31)], pa.int32()).cast(pa.int64())
    raw = raw.cast(pa.int32()).view(kind) if kind == pa.date32() else pa.compute.multiply(raw, 2**31).view(kind)
    nested = pa.ListArray.from_arrays([0, 1, 2, 3], pa.StructArray.from_arrays([raw, pa.array(["a"] * 3)], ["d", "s"]))
    rows, bad = read(stored(pa.table({"d": raw, "n": nested})))
    assert bad == []
    assert len(rows) == 3
    for row in rows:
        assert isinstance(row.value["d"], str | None)
        assert row.value["n"][0]["s"] == "a"


def test_a_text_that_is_not_utf8_makes_its_row_bad() -> None:
    texts = pa.StringArray.from_buffers(
        3, pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1, 2, 3))), pa.py_buffer(b"a\xe9c")
    )
    nested = pa.StructArray.from_arrays([texts], ["role"])
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], nested)
    for name, values in (("text", texts), ("one", nested), ("messages", lists)):
        assert told(stored(pa.table({name: values}))) == ([1, 3], [(2, f"is not UTF-8 in `{name}`")])


def test_a_name_that_is_there_twice_is_refused() -> None:
    reason = "the Parquet file has the name `text` twice at one place"
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    assert told(stored(twice)) == ([], [(None, reason)])
    inside = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    lists = pa.table({"x": pa.ListArray.from_arrays([0, 1], inside)})
    assert told(stored(lists)) == ([], [(None, reason)])


def test_a_file_without_rows_or_columns() -> None:
    assert told(stored(pa.table({"text": pa.array([], pa.string())}))) == ([], [(None, "the trace has no rows")])
    assert told(stored(pa.table({}))) == ([], [(None, "the Parquet file has no columns")])


def test_a_file_that_is_cut_off_or_damaged_is_told() -> None:
    data = stored([{"text": f"row {number}"} for number in range(1_000)], row_group_size=100, compression="snappy")
    for end in (4, 5, len(data) // 2, len(data) - 1):
        reason = f"the Parquet file ({end} bytes) is cut off or damaged: none of its rows can be read"
        assert told(data[:end]) == ([], [(None, reason)])
    at = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(4).column(0).dictionary_page_offset
    broken = data[:at] + bytes(200) + data[at + 200 :]
    lines, bad = told(broken)
    assert lines == list(range(1, 401))
    assert bad == [
        (None, f"the Parquet file ({len(data)} bytes) is cut off or damaged: it could be read up to row 400")
    ]


def test_a_row_that_is_too_long_is_refused_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LIMIT", 1_000)
    monkeypatch.setattr(parquet, "_BYTES", 400)
    rows = [{"text": "x" * size, "more": ["y", {"z": "z"}][:1]} for size in (10, 999, 1_000, 20)]
    assert told(stored(rows)) == ([1, 2, 4], [(3, TOO_LONG)])


def test_without_pyarrow_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data, real = stored([{"text": "a"}]), builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    (bad,) = read_rows(Source(name="t", data=data))
    assert isinstance(bad, BadRow)
    assert bad.line is None
    assert "pip install 'stepctl[parquet]'" in bad.reason
