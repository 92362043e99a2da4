"""Shapes of other tools that are not lists of messages in one column: Alpaca's, and OpenAI's for preferences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepctl.traces.formats.values import kind
from stepctl.traces.shapes.columns import Found, listed, system_text, text_flaws, tools_text
from stepctl.traces.shapes.examples import Message
from stepctl.traces.shapes.messages import parsed_turns, without_thinking
from stepctl.traces.shapes.prompted import Prompt, messages_prompt

ALPACA_COLUMNS = ("instruction", "input", "output", "history", "system", "tools")
OPENAI_COLUMNS = ("input", "preferred_output", "non_preferred_output")


def alpaca_prompt(row: Mapping[str, Any], found: Found) -> Prompt:
    """Alpaca's instruction, with its input after a blank line, as one user turn after the system text and history."""
    messages: list[Message] = []
    fields: list[str] = []
    if text := system_text(row, found):
        messages.append(Message("system", text))
        fields.append("system")
    _history(row.get("history"), messages, fields, found)
    asked = row.get("instruction")
    if "instruction" not in row:
        hint = ": rename `input`" if isinstance(row.get("input"), str) and row["input"].strip() else ""
        found.flaw("instruction", f"is missing: the row has {listed(row)}{hint}")
    else:
        found.flaws += text_flaws("instruction", asked)
    more = row.get("input")
    if more is not None and not isinstance(more, str):
        found.flaw("input", f"is {kind(more)}, not a string")
    elif isinstance(asked, str) and more and not more.isspace():
        asked = f"{asked}\n\n{more}"
    messages.append(Message("user", asked if isinstance(asked, str) else ""))
    tools = tools_text("tools", row.get("tools"), found)
    return Prompt("instruction", None, tuple(messages), (*fields, "instruction"), tools, chat=True)


def openai_prompt(row: Mapping[str, Any], found: Found) -> Prompt:
    """The object ``input`` of OpenAI's preferences: messages, and tools."""
    value = row.get("input")
    if not isinstance(value, dict):
        what = kind(value) if "input" in row else "missing"
        found.flaw("input", f'is {what}: write an object {{"messages": [...]}}')
        return Prompt("input", None, (), ())
    found.ignored += [
        f"input.{key}" for key, item in value.items() if item is not None and key not in ("messages", "tools")
    ]
    tools = tools_text("input.tools", value.get("tools"), found)
    if row.get("tools") not in (None, [], ""):
        found.flaw("tools", "stands outside `input`: write it there")
    if "messages" not in value:
        found.flaw("input.messages", "is missing: write a list of messages")
        return Prompt("input.messages", None, (), (), tools)
    read = parsed_turns("input.messages", value["messages"], found)
    return messages_prompt(row, "input.messages", read, tools, found)


def _history(value: Any, messages: list[Message], fields: list[str], found: Found) -> None:
    if value is None:
        return
    if not isinstance(value, list):
        found.flaw("history", f"is {kind(value)}, not a list of pairs [asked, answered]")
        return
    for number, pair in enumerate(value):
        if not isinstance(pair, list) or len(pair) != 2:
            what = f"has {len(pair)} texts" if isinstance(pair, list) else f"is {kind(pair)}"
            found.flaw(f"history[{number}]", f"{what}, not a pair [asked, answered]")
            continue
        for side, role in enumerate(("user", "assistant")):
            place = f"history[{number}][{side}]"
            text = pair[side]
            if flaws := text_flaws(place, text):
                found.flaws += flaws
                continue
            if role == "assistant" and found.thinking == "drop" and not (text := without_thinking(text)):
                found.flaw(place, "is thinking alone: nothing of this reply is left when thinking is dropped")
            messages.append(Message(role, text))
            fields.append(place)
