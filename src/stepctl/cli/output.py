"""The one sink of what commands say: results to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TextIO

import msgspec


def write_line(stream: TextIO, text: str) -> None:
    """Write ``text`` and a newline; what the stream's encoding lacks comes out escaped."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def emit_json(obj: object, stream: TextIO | None = None) -> None:
    """Write ``obj`` as one line of JSON, to stdout by default.

    Takes msgspec Structs, dataclasses, paths and what JSON knows; numbers that are not finite come out as null.
    """
    write_line(stream or sys.stdout, _encode(obj))


def _encode(obj: object) -> str:
    try:
        return msgspec.json.encode(obj, enc_hook=_encode_other).decode()
    except UnicodeEncodeError:
        # A file's name that is not UTF-8: JSON can carry it escaped only.
        import json

        return json.dumps(_finite(msgspec.to_builtins(obj, enc_hook=_encode_other)))


def _encode_other(value: Any) -> object:
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value


@dataclass(frozen=True)
class Output:
    """Where a command speaks.

    With ``json_mode``, stdout gets exactly the one object of :meth:`result`; without, lines for people. Notices and
    warnings go to stderr in both.
    """

    json_mode: bool = False

    def result(self, obj: object, lines: Iterable[str] = ()) -> None:
        """What the command was asked for: ``obj`` with --json, else ``lines``."""
        if self.json_mode:
            emit_json(obj)
            return
        for line in lines:
            self.line(line)

    def line(self, text: str) -> None:
        """A line for people; not written with --json."""
        if not self.json_mode:
            write_line(sys.stdout, text)

    def notice(self, text: str) -> None:
        """Something on the way, to stderr."""
        write_line(sys.stderr, text)

    def warning(self, text: str) -> None:
        """Something a person should know, to stderr."""
        write_line(sys.stderr, f"warning: {text}")
