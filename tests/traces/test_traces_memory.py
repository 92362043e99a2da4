"""Reading holds a row at a time: large files, rows without an end, and texts that unpack to very much more."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

import stepctl

SOURCE = Path(stepctl.__file__).resolve().parent.parent
MIB = 1 << 20
READ = """
import sys
from pathlib import Path
from stepctl.traces.formats.sniff import sniff
from stepctl.traces.read import RawRow, read_rows
from stepctl.traces.rows import FileSource

def high():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) >> 10

if "parquet" in sys.argv[1]:
    import pyarrow.parquet
elif "zst" in sys.argv[1]:
    import zstandard
before, rows, bad = high(), 0, []
for row in read_rows(FileSource(name="t", path=Path(sys.argv[1]))):
    if isinstance(row, RawRow):
        rows += 1
    else:
        bad.append((row.line, row.reason))
print(rows, high() - before, bad)
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")


def read(path: Path) -> tuple[int, int, str]:
    """Rows, MiB of memory at most, and what is bad."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows, memory, bad = done.stdout.split(maxsplit=2)
    return int(rows), int(memory), bad.strip()


def row(size: int) -> bytes:
    return b'{"text": "' + b"two plus two " * (size // 13) + b'"}'


@pytest.mark.parametrize(
    ("before", "between", "after"), [(b"", b"\n", b"\n"), (b"[", b",", b"]"), (b"[\n", b",\r\n", b"\n]")]
)
def test_a_file_of_200_mb_takes_little_memory(tmp_path: Path, before: bytes, between: bytes, after: bytes) -> None:
    path, count = tmp_path / "rows", 2_000
    with path.open("wb") as file:
        file.write(before + row(100_000))
        for _ in range(count - 1):
            file.write(between + row(100_000))
        file.write(after)
    assert path.stat().st_size > 190 * MIB
    rows, memory, bad = read(path)
    assert (rows, bad) == (count, "[]")
    assert memory < 12


def test_pretty_printed_objects_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with path.open("wb") as file:
        for _ in range(1_000):
            file.write(row(100_000).replace(b'{"', b'{\n  "').replace(b'"}', b'"\n}\n'))
    rows, memory, bad = read(path)
    assert (rows, bad) == (1_000, "[]")
    assert memory < 12


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    """Half a GiB in one line, packed to 20 KB, between two rows."""
    path = tmp_path / "bomb.zst"
    with path.open("wb") as file, zstandard.ZstdCompressor(level=19).stream_writer(file) as packed:
        packed.write(row(100) + b"\n")
        for _ in range(512):
            packed.write(bytes(MIB))
        packed.write(b"\n" + row(100) + b"\n")
    assert path.stat().st_size < MIB
    rows, memory, bad = read(path)
    assert (rows, bad) == (2, "[(2, 'is longer than 64 MiB of text')]")
    assert memory < 64 + 24


def test_a_gzip_bomb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    with gzip.open(path, "wb", 1) as packed:
        packed.write(b'{"text": "a"}\n' + b" " * 150 * MIB + b'\n{"text": "b"}')
    rows, memory, bad = read(path)
    assert (rows, bad) == (2, "[(2, 'is longer than 64 MiB of text')]")
    assert memory < 64 + 24


@pytest.mark.parametrize("array", [False, True])
def test_rows_around_the_bound(tmp_path: Path, array: bool) -> None:
    path, whole = tmp_path / "rows", 64 * MIB
    with path.open("wb") as file:
        file.write(b"[" if array else b"")
        for number, size in enumerate((whole, 2 * whole, whole + 1, 20)):
            file.write((b",\n" if array else b"\n") * bool(number) + b'{"text": "' + b"x" * (size - 12) + b'"}')
        file.write(b"]" if array else b"\n")
    rows, memory, bad = read(path)
    assert (rows, bad) == (2, "[(2, 'is longer than 64 MiB of text'), (3, 'is longer than 64 MiB of text')]")
    assert memory < 4 * 64 + 24


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    """One row group of 200 MB, in pages of 1 MB."""
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": pyarrow.repeat(row(2_000).decode(), 100_000)})
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, row_group_size=100_000)
    assert path.stat().st_size > 190 * MIB
    rows, memory, bad = read(path)
    assert (rows, bad) == (100_000, "[]")
    assert memory < 32
