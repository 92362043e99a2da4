"""Many damaged files: each is read and judged for every method without an exception, a hang, or memory that grows."""

from __future__ import annotations

import bz2
import faulthandler
import gzip
import io
import json
import lzma
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from stepctl.traces.judge import METHODS, judge
from stepctl.traces.read import RawRow, read_rows
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import BadRow, Source
from stepctl.traces.rules import Rules

FILES = 10_500
WARM = 2_500
"""Files after which memory has its size."""
GROWTH = 24 << 20
SECONDS_A_FILE = 5

CHAT = [{"role": "user", "content": "What is two plus two?"}, {"role": "assistant", "content": "Four, café 😀."}]
ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "system", "content": "Be brief."}, *CHAT]},
    {"prompt": "Two plus two is", "completion": " four."},
    {"text": "Paris", "id": 3, "meta": {"a": [1, 2.5, None, True]}},
    {"prompt": "p", "chosen": " four", "rejected": " five"},
    {"chosen": CHAT, "rejected": [*CHAT[:1], {"role": "assistant", "content": "Five."}]},
    {"prompt": "p", "completion": " four", "label": True},
    {"messages": CHAT, "desirable": False},
    {"instruction": "Add.", "input": "2 2", "output": "4"},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
]
FRAGMENTS = [
    *"{}[],:\"'\\\n\r\t \0\x1b-0e.",
    *("null", "true", "NaN", "-Infinity", "1e999", '"', '\\"', "\\u", "\\ud800", "\\udc00", "\ufeff", "\u2028", "é"),
    *(
        '{"text":',
        '"messages": [',
        '{"role": "user"',
        "}\n{",
        "},\n",
        "[[",
        "]]",
        "{\n",
        "\n}\n",
        "[" * 2_000,
        '{"a":' * 999,
    ),
]
MAGICS = [
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"PAR1",
    b"PK\x03\x04",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\x50\x2a\x4d\x18",
]


def parquet(dice: random.Random, rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    codec = dice.choice(["none", "snappy", "gzip", "zstd"])
    sizes = {"row_group_size": dice.choice([1, 2, 1_000]), "use_dictionary": dice.random() < 0.5}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), out, compression=codec, **sizes)
    return out.getvalue()


def text(dice: random.Random, rows: list[Any]) -> bytes:
    ascii_only = dice.random() < 0.5
    dumped = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    form = dice.randrange(5)
    if form == 0:
        return ("[" + ",\n".join(dumped) + "]").encode()
    if form == 1:
        return json.dumps(rows, ensure_ascii=ascii_only, indent=dice.choice([0, 1, 4])).encode()
    if form == 2:
        return "\n".join(json.dumps(row, indent=2, ensure_ascii=ascii_only) for row in rows).encode()
    if form == 3:
        return b"\xef\xbb\xbf" + "\r\n".join(dumped).encode()
    return ("\n".join(dumped) + "\n").encode()


def pack(dice: random.Random, data: bytes) -> bytes:
    half = dice.randrange(len(data) + 1)
    choice = dice.randrange(8)
    if choice < 3:
        return gzip.compress(data, 1, mtime=0)
    if choice == 3:
        return (
            gzip.compress(data[:half], 9, mtime=0) + gzip.compress(data[half:], 0, mtime=0) + bytes(dice.randrange(3))
        )
    if choice < 6:
        return zstandard.ZstdCompressor(level=dice.choice([1, 19]), write_checksum=dice.random() < 0.5).compress(data)
    if choice == 6:
        return zstandard.compress(data[:half]) + b"\x50\x2a\x4d\x18\x02\0\0\0ab" + zstandard.compress(data[half:])
    return dice.choice([bz2.compress, lzma.compress, zstandard.compress])(gzip.compress(data, mtime=0))


def fragments(dice: random.Random) -> bytes:
    return "".join(dice.choice(FRAGMENTS) for _ in range(dice.randrange(1, 30))).encode()


def damage(dice: random.Random, data: bytes) -> bytes:
    broken = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5])):
        at, end = sorted(dice.randrange(len(broken) + 1) for _ in range(2))
        what = dice.randrange(9)
        if what == 0:
            del broken[at:]
        elif what == 1:
            del broken[at:end]
        elif what == 2:
            broken[at:at] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 9)))
        elif what == 3:
            broken[at:at] = fragments(dice)
        elif what == 4:
            broken[at:], broken[:at] = broken[:at], broken[at:]
        elif what == 5:
            broken[at:end] = bytes(end - at)
        elif what == 6:
            broken[at:at] = dice.choice(MAGICS)
        else:
            for _ in range(dice.choice([1, 3, 30])):
                if broken:
                    broken[dice.randrange(len(broken))] ^= 1 << dice.randrange(8)
    return bytes(broken)


def files(dice: random.Random, count: int) -> Iterator[bytes]:
    # A column of Parquet has one type.
    tables = ([*ROWS[:4], *ROWS[5:]], ROWS[4:5])
    parquets = [parquet(dice, dice.choices(dice.choice(tables), k=dice.randrange(1, 6))) for _ in range(60)]
    for _ in range(count):
        rows = dice.choices(ROWS, k=dice.randrange(1, 5))
        kind = dice.randrange(12)
        if kind == 0:
            yield fragments(dice)
        elif kind == 1:
            yield text(dice, [*rows, dice.choice([5, None, "a", [], {}, {"data": rows}])])
        elif kind < 5:
            yield damage(dice, text(dice, rows))
        elif kind == 5:
            yield damage(dice, text(dice, rows)) + dice.choice([b"", b"\n"]) + damage(dice, text(dice, rows))
        elif kind == 6:
            yield pack(dice, damage(dice, text(dice, rows)))
        elif kind < 9:
            yield damage(dice, pack(dice, text(dice, rows)))
        elif kind == 9:
            yield (
                text(dice, rows).decode().encode(dice.choice(["utf-16", "utf-16-be", "utf-32-le", "cp1252"]), "replace")
            )
        elif kind == 10:
            yield dice.choice([MAGICS[dice.randrange(len(MAGICS))], b"%PDF-1.7\n", b"SQLite format 3\0"]) + damage(
                dice, text(dice, rows)
            )
        else:
            yield damage(dice, dice.choice(parquets))


@contextmanager
def bounded() -> Iterator[None]:
    """Fail when one file takes too long; end the process, with a traceback, when even that is not heard."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"one file took more than {SECONDS_A_FILE} s")

    before = signal.signal(signal.SIGALRM, ring)
    faulthandler.dump_traceback_later(20 * SECONDS_A_FILE, exit=True)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_A_FILE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def judged(data: bytes, tokenizer: TextTokenizer) -> str:
    """The form that the file was taken for."""
    source = Source(name="t", data=data)
    reading = read_rows(source)
    read = list(reading)
    assert read, "neither rows nor bad rows"
    assert all(isinstance(row, RawRow | BadRow) for row in read)
    lines = [row.line for row in read if isinstance(row, RawRow)]
    assert lines == sorted(set(lines))
    for method in METHODS:
        result = judge([source], Rules(method=method, max_length=64), tokenizer)
        assert result.rows or result.bad
        assert {row.line for row in result.rows} <= set(lines)
    return reading.format


@pytest.mark.parametrize("seed", [20260])
def test_no_file_raises_hangs_or_grows_memory(chatml: TextTokenizer, seed: int) -> None:
    dice, seen = random.Random(seed), dict[str, int]()
    process, warm = psutil.Process(), 0
    for number, data in enumerate(files(dice, FILES)):
        if number == WARM:
            warm = process.memory_info().rss
        try:
            with bounded():
                form = judged(data, chatml)
        except BaseException as error:
            error.add_note(f"file {number} of seed {seed}: {data!r}")
            raise
        seen[form] = seen.get(form, 0) + 1
    assert process.memory_info().rss - warm < GROWTH
    forms = [" ".join(form.split(", ")[:1]) for form in seen if seen[form] >= 50]
    assert {"JSON lines", "a JSON array", "pretty-printed JSON objects", "Parquet"} <= set(forms), seen
    assert {packing for form in seen for packing in ("gzip", "zstandard") if packing in form} == {"gzip", "zstandard"}
