"""docs/traces.md names every reason for which reading refuses a file or a row, in the words that are printed."""

from __future__ import annotations

import gzip
import io
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from stepctl.traces.read import parse
from stepctl.traces.rows import Source

PAGE = (Path(__file__).parents[2] / "docs/traces.md").read_text()
REASONS = re.findall(r"^\| `(.*?)` \|", PAGE, re.MULTILINE)
PACKED = gzip.compress(b'{"text": "a"}\n', mtime=0)


def stored(table: pyarrow.Table) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(table, out)
    return out.getvalue()


TABLE = stored(pyarrow.table({"text": ["a"]}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        b"a,b\nc,d\n",
        gzip.compress(PACKED, mtime=0),
        PACKED[:-3],
        PACKED[:9] + b"\xff\xff\xff\xff",
        PACKED[:-8] + b"12345678",
        PACKED + b"more",
        b"\x28\xb5\x2f\xfd\x01\x58\x09\x01\0\0",
        b"\x28\xb5\x2f\xfd\x00\xa0\x01\0\0",
        zstandard.compress(b"{}")[:-1],
        TABLE[:-1],
        stored(pyarrow.table({})),
        stored(pyarrow.table([["a"], ["b"]], names=["x", "x"])),
        b'[{"text": "a"}\n] x',
        b'{"text": "\xe9"}',
        b'{"text": "a"},',
        b'{"text": "a"} {}',
        b'{\n "text": "a"\n} x',
        b'{"text": "a',
        b"{'text': 'a'}",
        b'{"text" 1}',
        b'{"text": "a" 1}',
        b'{"text": tru}',
        b'{"text": "a\tb"}',
        rb'{"text": "\x"}',
        b'{"text": "a"}\n\0\0',
        b"[5]",
        b'{"data": [{"text": "a"}]}',
        b'{"text": 1, "text": 2}',
        b'{"text": NaN}',
        rb'{"text": "\ud800"}',
        b'{"a":' * 5_000,
    ],
)
def test_a_reason_stands_on_the_page(data: bytes) -> None:
    _, (bad,) = parse(Source(name="t", data=data))
    reason = re.sub(r"; what follows was not read$", "", bad.reason)
    forms = (reason, bad.reason, re.sub(r"line \d+, column", "column", reason))
    assert any(re.fullmatch(pattern(stated), form, re.DOTALL) for stated in REASONS for form in forms), bad.reason


def pattern(stated: str) -> str:
    """``N`` stands for numbers, ``X`` and ``...`` for anything."""
    quoted = re.escape(stated.replace("gzip", "PACKED").replace("zstandard", "PACKED"))
    quoted = re.sub(r"\bN\b", r"\\d+", quoted).replace(r"\.\.\.", ".*")
    return re.sub(r"\bX\b", ".+", quoted).replace("PACKED", "(gzip|zstandard)")
