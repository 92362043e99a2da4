"""The calls that an assistant's message makes, and the answers' ties to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepctl.traces.formats.values import kind
from stepctl.traces.shapes.columns import Found
from stepctl.traces.shapes.examples import ToolCall
from stepctl.traces.shapes.inner import NotJson, read_json, write_json

_FORM = '{"type": "function", "function": {"name": ..., "arguments": {...}}}'


def calls_of(place: str, value: Any, found: Found) -> tuple[ToolCall, ...]:
    """Read ``tool_calls``: OpenAI's form, or name and arguments alone. Empty also when a call is wrong.

    Args:
        place: the field, for flaws.
        value: what it holds.
        found: where the flaws go.
    """
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        found.flaw(place, f"is {kind(value)}, not a list of calls {_FORM}")
        return ()
    calls = [_call(f"{place}[{number}]", call, found) for number, call in enumerate(value)]
    return tuple(call for call in calls if call is not None)


def call_text(place: str, value: str, found: Found) -> tuple[ToolCall, ...]:
    """Read the JSON text of one call or of a list of them, as ShareGPT's ``function_call`` has it."""
    try:
        calls = read_json(value)
    except NotJson as error:
        found.flaw(place, f'{error.reason}: a call is written as {{"name": ..., "arguments": {{...}}}}')
        return ()
    if isinstance(calls, list) and calls:
        return calls_of(place, calls, found)
    call = _call(place, calls, found)
    return () if call is None else (call,)


def tie(place: str, message: Mapping[str, Any], key: str, found: Found) -> str | None:
    """The ``name`` or ``tool_call_id`` of a message; None when it has none."""
    value = message.get(key)
    if value is None or isinstance(value, str):
        return value or None
    found.flaw(f"{place}.{key}", f"is {kind(value)}, not a string")
    return None


def _call(place: str, call: Any, found: Found) -> ToolCall | None:
    if not isinstance(call, dict):
        found.flaw(place, f"is {kind(call)}, not an object {_FORM}")
        return None
    flaws = len(found.flaws)
    if call.get("type") not in (None, "function"):
        found.flaw(f"{place}.type", 'is not "function": only calls of functions are read')
    where, function = place, call
    if call.get("function") is not None:
        where, function = f"{place}.function", call["function"]
        if not isinstance(function, dict):
            found.flaw(where, f"is {kind(function)}, not an object with name and arguments")
            return None
        if any(call.get(key) is not None for key in ("name", "arguments")):
            found.flaw(place, "has a name or arguments beside `function`: write them in `function` alone")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        found.flaw(f"{where}.name", f"is {_absent(function, 'name')}: write the function's name")
    arguments = _arguments(f"{where}.arguments", function, found)
    number = tie(place, call, "id", found)
    return None if len(found.flaws) > flaws else ToolCall(str(name), arguments, number)


def _arguments(place: str, function: Mapping[str, Any], found: Found) -> str:
    value = function.get("arguments")
    if value is None or (isinstance(value, str) and not value.strip()):
        found.flaw(place, f"is {_absent(function, 'arguments')}: write {{}} for no arguments")
        return ""
    try:
        arguments = read_json(value) if isinstance(value, str) else value
        if isinstance(arguments, dict):
            return write_json(arguments)
        what = kind(arguments) if arguments is value else f"text of {kind(arguments)}"
        found.flaw(place, f"is {what}, not an object or JSON text of one")
    except NotJson as error:
        found.flaw(place, f"{error.reason}: write an object, or JSON text of one")
    return ""


def _absent(holder: Mapping[str, Any], key: str) -> str:
    """What a value is that is not what it should be."""
    if key not in holder:
        return "missing"
    value = holder[key]
    return "empty" if isinstance(value, str) and not value.strip() else kind(value)
