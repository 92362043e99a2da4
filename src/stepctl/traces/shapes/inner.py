"""JSON inside a column: text that holds tools, calls or messages, and values that become text again."""

from __future__ import annotations

import json
from typing import Any

DEPTH = 100
"""Lists and objects inside each other that are read: templates walk through them again, some by recursion."""


class NotJson(Exception):
    """A text is no JSON, or a value cannot be written as JSON; ``reason`` has no text of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_json(text: str) -> Any:
    """The value that ``text`` holds.

    Raises:
        NotJson: it is no JSON, or what JSON allows but a trace must not have (a name twice, half a character).
    """
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise NotJson(f"is text that is no JSON at its column {error.colno}, line {error.lineno}") from None
    except ValueError:
        raise NotJson("is text that holds a number with too many digits") from None
    except RecursionError:
        raise NotJson("is text that holds JSON nested too deeply") from None
    if "\\u" in text:
        try:
            write_json(value).encode()
        except UnicodeEncodeError:
            raise NotJson("is text that holds half of a surrogate pair, which is no character") from None
    return value


def write_json(value: Any) -> str:
    """``value`` as JSON text: its names in the order given, and characters as they are.

    Raises:
        NotJson: it holds what JSON cannot.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if text.count("[") + text.count("{") > DEPTH and _depth(value) > DEPTH:
            raise NotJson(f"has more than {DEPTH} lists and objects inside each other")
        return text
    except (ValueError, TypeError):
        raise NotJson("holds a value that JSON cannot write") from None
    except RecursionError:
        raise NotJson(f"has more than {DEPTH} lists and objects inside each other") from None


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, list | dict)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise NotJson("is text that holds JSON with a name twice in one object")
    return value


def _constant(_name: str) -> None:
    raise NotJson("is text that holds NaN or Infinity, which is not JSON")
