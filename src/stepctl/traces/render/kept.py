"""What of a conversation a template leaves out in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from stepctl.traces.render.encoded import squashed
from stepctl.traces.render.probe import ARGUMENTS, CONTENT, KEY, THINKING, VALUE, Found, as_json, blank
from stepctl.traces.render.refusal import LEAVES_OUT_CALLS, LEAVES_OUT_THINKING, LEAVES_OUT_TOOLS, leaves_out_text
from stepctl.traces.shapes.examples import Conversation, Message, ToolCall


def learned(conversation: Conversation) -> list[int]:
    """Numbers of the turns that are supervised."""
    return [
        number
        for number, message in enumerate(conversation.messages)
        if message.role == "assistant"
        and number >= conversation.prompt
        and message.supervised
        and not (blank(message.content) and blank(message.thinking) and not message.calls)
    ]


def turn(conversation: Conversation, number: int) -> str:
    """Where a message as a whole stands in its row."""
    return conversation.field(number).removesuffix(".content")


def left_out(
    conversation: Conversation, probe: str, marks: Sequence[Found], without_tools: str | None, supervise: bool
) -> tuple[str, str] | None:
    """The field and reason of the first part that a rendering of stand-ins does not show.

    Args:
        conversation: the conversation itself.
        probe: the rendering of its stand-ins.
        marks: those in it.
        without_tools: the same with no tools; None when there are none, or the template needs them.
        supervise: whether replies are supervised: else their thinking may be dropped, as it is when the model answers.
    """
    if conversation.tools:
        names = [name for name in _names(json.loads(conversation.tools)) if name]
        if probe == without_tools or not all(name in probe for name in names):
            return "tools", LEAVES_OUT_TOOLS
    shown = {(mark.number, mark.kind, mark.call) for mark in marks}
    supervised = set(learned(conversation)) if supervise else set()
    for number, message in enumerate(conversation.messages):
        if not blank(message.content) and (number, CONTENT, 0) not in shown:
            return conversation.field(number), leaves_out_text(message.role)
        for call_number, call in enumerate(message.calls):
            both = {(number, KEY, call_number), (number, VALUE, call_number)}
            if call.name not in probe or not (both <= shown or (number, ARGUMENTS, call_number) in shown):
                return f"{turn(conversation, number)}.tool_calls", LEAVES_OUT_CALLS
        if number in supervised and not blank(message.thinking) and (number, THINKING, 0) not in shown:
            return turn(conversation, number), LEAVES_OUT_THINKING
    return None


def _names(tools: Any) -> Iterator[str]:
    for tool in tools if isinstance(tools, list) else [tools]:
        function = tool.get("function", tool) if isinstance(tool, dict) else {}
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            yield name


def shows(whole: str, content: str) -> bool:
    """Whether a squashed rendering has a message's text, as it is or as ``tojson`` writes it."""
    return squashed(content) in whole or squashed(json.dumps(content, ensure_ascii=False)[1:-1]) in whole


def shows_calls(whole: str, message: Message) -> bool:
    """Whether a squashed rendering has each call's name and its arguments."""
    return all(squashed(call.name) in whole and _shows_arguments(whole, call) for call in message.calls)


def _shows_arguments(whole: str, call: ToolCall) -> bool:
    if squashed(as_json(call.arguments)) in whole:
        return True
    # Not as one JSON object: then each name and each value.
    arguments = json.loads(call.arguments)
    return isinstance(arguments, dict) and all(
        squashed(name) in whole and any(squashed(form) in whole for form in _forms(value))
        for name, value in arguments.items()
    )


def _forms(value: Any) -> Iterator[str]:
    yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield str(value)
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value)
    yield json.dumps(value, ensure_ascii=False, sort_keys=True)
