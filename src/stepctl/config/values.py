"""One given value: where it comes from, how strictly it is read, and what is said when it is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from stepctl.base.errors import UsageError
from stepctl.config.fields import OPTIONS, Setting

TOML_NAME = "stepctl.toml"
AUTO = "auto"

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LONGEST_INTEGER = 64
_TOKEN = re.compile(r"(hf|rpa|sk)[_-]\w{8,}")
_INT64 = 2**63


@dataclass(frozen=True)
class Given:
    """A value that somebody gave.

    ``path`` is the setting's name in parts; ``base`` the folder that a relative path is relative to; ``variable`` the
    name in the environment, as it is written there; ``file`` the settings file.
    """

    path: tuple[str, ...]
    value: object
    origin: Literal["option", "environment", "toml"]
    base: Path
    variable: str = ""
    file: Path | None = None

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.path)

    @property
    def source(self) -> str:
        """The source in one or two words: ``option``, ``environment NAME`` or ``stepctl.toml``."""
        return {"option": "option", "environment": f"environment {self.variable}", "toml": TOML_NAME}[self.origin]

    @property
    def where(self) -> str:
        """The source as a person finds it: with the option's name, or the file's path."""
        if self.origin == "toml":
            return str(self.file)
        return OPTIONS.get(self.name, "an option") if self.origin == "option" else self.source

    def refuse(self, message: str, *, next: str = "", code: str = "bad_setting") -> UsageError:
        """An error about this value, for the caller to raise; ``message`` says what is wrong."""
        remedy = {
            "option": f"give another value to {self.where}",
            "environment": f"correct {self.variable}, or unset it",
            "toml": f"correct {printable(self.name)} in {self.where}",
        }
        details: dict[str, object] = {"key": self.name, "source": self.source}
        return UsageError(message, next=next or remedy[self.origin], code=code, details=details)


def printable(name: str) -> str:
    """A key for a message: quoted when it is odd, cut when it is long."""
    short = name if len(name) <= 80 else name[:77] + "..."
    return short if short and short.isprintable() else repr(short)


def shown(value: object) -> str:
    """A wrong value for a message, on one line; what looks like a token is not shown."""
    match value:
        case None:
            text = "nothing"
        case bool():
            text = "true" if value else "false"
        case str():
            visible = _TOKEN.sub("(hidden)", value)
            text = repr(visible if len(visible) <= 60 else visible[:57] + "...")
        case int() if abs(value) >= _INT64:
            text = "a number too large"
        case int() | float():
            text = str(value)
        case dict():
            text = "a table"
        case list():
            nested = any(isinstance(item, list | dict) for item in value)
            text = "a nested list" if nested else f"[{', '.join(map(shown, value[:8]))}{', ...' * (len(value) > 8)}]"
        case _:
            text = "a date or time"
    return text


def convert(setting: Setting, given: Given) -> object:
    """The value of ``given`` in the type of ``setting``.

    Text of the environment or of an option is read as the setting's type; a TOML value has its type already.

    Raises:
        UsageError: it has another type, is outside the limits, not finite, empty, or has control characters.
    """
    value = given.value
    if setting.optional and value == "":
        return None
    if isinstance(value, str) and given.origin != "toml":
        value = _parse(setting, value)
    if value == AUTO and setting.default == (AUTO,):
        value = [AUTO]
    for text in _texts(value):
        if isinstance(text, str):
            _check_text(given, text)
    too_large = isinstance(value, int) and not -_INT64 <= value < _INT64
    infinite = isinstance(value, float) and not math.isfinite(value)
    try:
        if too_large or infinite:
            raise msgspec.ValidationError
        result = msgspec.convert(value, setting.hint)
    except msgspec.ValidationError:
        raise given.refuse(f"{given.name} must be {setting.expected}; {given.where} says {shown(value)}") from None
    if isinstance(result, tuple):
        _check_list(given, result, may_be_empty=setting.default == ())
    return result


def _texts(value: object) -> Iterable[object]:
    match value:
        case list():
            return value
        case dict():
            return value.values()
        case _:
            return (value,)


def _check_text(given: Given, text: str) -> None:
    if not text.strip():
        raise given.refuse(f"{given.name} must not be empty, and {given.where} gives an empty text")
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise given.refuse(f"{given.name} has a control character; {given.where} says {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise given.refuse(f"{given.name} is not UTF-8 in {given.where}") from None


def _check_list(given: Given, items: Sequence[object], *, may_be_empty: bool) -> None:
    if not items and not may_be_empty:
        raise given.refuse(f"{given.name} must name at least one, and {given.where} gives none")
    twice = next((item for i, item in enumerate(items) if item in items[:i]), None)
    if twice is not None:
        raise given.refuse(f"{given.name} names {shown(twice)} twice in {given.where}")


def _parse(setting: Setting, text: str) -> object:
    """Read text as the type of ``setting``; what cannot be read stays text, and fails as such."""
    word = text.strip()
    if setting.kind == "integer" and _INTEGER.fullmatch(word) and len(word) <= _LONGEST_INTEGER:
        return int(word)
    if setting.kind == "number" and _NUMBER.fullmatch(word):
        return float(word)
    if setting.kind == "boolean" and word.lower() in ("true", "false"):
        return word.lower() == "true"
    readers = {"list": _parse_list, "integers": _parse_integers, "table": _parse_json}
    return readers[setting.kind](word) if setting.kind in readers else text


def _parse_integers(text: str) -> object:
    items = _parse_list(text)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items) or text.startswith("["):
        return items
    short = all(_INTEGER.fullmatch(item) and len(item) <= _LONGEST_INTEGER for item in items)
    return [int(item) for item in items] if short else text


def _parse_list(text: str) -> object:
    if not text.startswith("["):
        return [item.strip() for item in text.split(",")]
    return _parse_json(text)


def _parse_json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
