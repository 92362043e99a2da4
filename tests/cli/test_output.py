"""stdout holds the result and nothing else, whatever is in it."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import Struct

from stepctl.cli.output import Output, emit_json, write_line


class Inner(Struct):
    path: Path
    values: tuple[float, ...]


@dataclass
class Record:
    name: str
    inner: Inner


def test_json_mode_writes_one_object_and_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(json_mode=True)
    output.notice("on the way")
    output.warning("odd")
    output.line("for people")
    output.result({"a": Record("x", Inner(Path("p"), (1.5,)))}, ["for people"])
    said = capsys.readouterr()
    assert said.out == '{"a":{"name":"x","inner":{"path":"p","values":[1.5]}}}\n'
    assert said.err == "on the way\nwarning: odd\n"


def test_human_mode_writes_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    output.line("first")
    output.result({"a": 1}, ["second", "third"])
    output.notice("aside")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("first\nsecond\nthird\n", "aside\n")


@pytest.mark.parametrize("name", ["plain", "caf\udce9.jsonl"], ids=["utf-8", "not utf-8"])
def test_numbers_that_json_lacks_are_null(capsys: pytest.CaptureFixture[str], name: str) -> None:
    emit_json({"name": name, "values": [float("nan"), float("inf"), -1.0], "path": Path("a"), "no": None, "yes": True})
    said = json.loads(capsys.readouterr().out)
    assert said == {"name": name, "values": [None, None, -1.0], "path": "a", "no": None, "yes": True}


def test_what_has_no_json_form_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON form"):
        emit_json({"a": object()}, io.StringIO())


@pytest.mark.parametrize(
    ("encoding", "written"), [("ascii", b"caf\\xe9 \\udcff\n"), ("utf-8", b"caf\xc3\xa9 \\udcff\n")]
)
def test_a_stream_that_lacks_a_character_gets_it_escaped(encoding: str, written: bytes) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    write_line(stream, "café \udcff")
    assert raw.getvalue() == written
