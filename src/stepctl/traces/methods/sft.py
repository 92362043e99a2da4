"""The shapes of a row for supervised fine-tuning.

A row has one of ``messages``, ``conversations`` (ShareGPT), ``prompt`` + ``completion``, ``instruction`` + ``output``
(Alpaca), or ``text``. Each row is taken by its own shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepctl.traces.shapes.columns import (
    ALPACA,
    CONVERSATIONS,
    MESSAGES,
    SHAREGPT,
    STRINGS,
    TEXT,
    Found,
    foreign,
    kind_of,
    listed,
    no_chat_columns,
    pick,
    refuse_changes,
    text_flaws,
    tools_text,
)
from stepctl.traces.shapes.dialects import ALPACA_COLUMNS, alpaca_prompt
from stepctl.traces.shapes.examples import Completion, Conversation, Shaped, Text, Thinking
from stepctl.traces.shapes.messages import parsed_turns
from stepctl.traces.shapes.prompted import answer, note_lists, prompt_of_columns, strings_only, with_system

SHAPES = "`messages`, `conversations`, `prompt` and `completion`, `instruction` and `output`, or `text`"
SHAPE_COLUMNS = {
    "messages": MESSAGES,
    "conversations": SHAREGPT,
    "conversation": SHAREGPT,
    "prompt": STRINGS,
    "completion": STRINGS,
    "instruction": ALPACA,
    "output": ALPACA,
    "text": TEXT,
}
_OTHERS = {
    "chosen": "DPO preferences",
    "rejected": "DPO preferences",
    "preferred_output": "DPO preferences",
    "non_preferred_output": "DPO preferences",
    "label": "KTO labels",
    "desirable": "KTO labels",
    "labels": "labels",
}
_EXTRAS = frozenset(("system", "tools"))
_CHAT = frozenset(("messages", *CONVERSATIONS)) | _EXTRAS
_PROMPTED = frozenset(("prompt", "completion")) | _EXTRAS
_WHOLE = "use `messages` for a whole conversation"


def shape(row: dict[str, Any], *, need_assistant: bool = True, thinking: Thinking = "keep") -> Shaped:
    """Take a row by its shape.

    ``need_assistant`` refuses conversations without an assistant's turn: nothing in them is supervised then. Without
    it every token is supervised, so that a weight of 0 is refused.
    """
    found = Found(thinking)
    if foreign(row, _OTHERS, "SFT", found) or (picked := pick(row, SHAPE_COLUMNS, SHAPES, found)) is None:
        return found.shaped(None, kind_of(row))
    refuse_changes(row, found)
    example: Conversation | Completion | Text | None
    if picked in (MESSAGES, SHAREGPT):
        example = conversation(row, found)
    elif picked == STRINGS:
        example = completion(row, found, _WHOLE, "; use `text` for a row without one")
    elif picked == ALPACA:
        example = replace(reply, prompt=0) if (reply := alpaca(row, found)) else None
    else:
        example = _text(row, found)
    if isinstance(example, Conversation) and not found.flaws:
        _check_supervised(example, need_assistant, found)
    return found.shaped(example, picked)


def chat_column(row: Mapping[str, Any]) -> str:
    """Which column of a row holds the messages of a whole conversation."""
    for name in ("messages", *CONVERSATIONS):
        if row.get(name) is not None:
            return name
    return next(name for name in ("messages", *CONVERSATIONS) if name in row)


def conversation(row: Mapping[str, Any], found: Found) -> Conversation | None:
    """A whole conversation, with its row's system text and tools."""
    column = chat_column(row)
    read = parsed_turns(column, row[column], found)
    tools = ""
    if not row.keys().isdisjoint(_EXTRAS):
        tools = tools_text("tools", row.get("tools"), found)
        read = read and with_system(row, column, read, found)
    if len(row) > 1:
        found.unused(row, _CHAT)
    return None if read is None else Conversation(read.messages, 0, column, read.fields, tools)


def completion(row: Mapping[str, Any], found: Found, whole: str, empty: str = "") -> Conversation | Completion | None:
    """``prompt`` with ``completion``.

    Args:
        row: the row.
        found: where flaws go.
        whole: what to do when the completion holds the prompt too.
        empty: what to say besides of a prompt that is missing or has no words.
    """
    found.unused(row, _PROMPTED)
    prompt = prompt_of_columns(row, "prompt", found, beside=f" beside `completion`{empty}", empty=empty)
    answered = answer(row, prompt, "completion", found, beside="prompt", whole=whole)
    strings_only(row, prompt, [answered], found)
    return answered


def alpaca(row: Mapping[str, Any], found: Found) -> Conversation | None:
    """Alpaca's columns as a conversation of which the output is the last turn."""
    found.unused(row, ALPACA_COLUMNS)
    prompt = alpaca_prompt(row, found)
    if "output" not in row:
        found.flaw("output", f"is missing: the row has {listed(row)}; write the reply, or leave the row out")
        return None
    answered = answer(row, prompt, "output", found, beside="instruction", whole=_WHOLE)
    return answered if isinstance(answered, Conversation) else None


def _text(row: Mapping[str, Any], found: Found) -> Text:
    found.unused(row, ("text", "tools"))
    found.flaws += text_flaws("text", row["text"])
    note_lists("text", row["text"], found)
    no_chat_columns(row, "`text` is trained as it is,", found, system=False)
    return Text(row["text"])


def _check_supervised(example: Conversation, need_assistant: bool, found: Found) -> None:
    """Refuse a conversation of which nothing, or against its weights all, is supervised."""
    if need_assistant:
        for message in example.messages[example.prompt :]:
            if message.role == "assistant" and message.supervised:
                return
    replies = [
        (number, message)
        for number, message in enumerate(example.messages)
        if number >= example.prompt and message.role == "assistant"
    ]
    if not need_assistant:
        for number, message in replies:
            if not message.supervised:
                field = f"{example.field(number).rpartition('.')[0]}.weight"
                found.flaw(field, "is 0, but every token is supervised: train on the assistant's turns, or remove it")
    elif not replies:
        found.flaw(example.column, "has no assistant turn: nothing is supervised; add the reply, or leave the row out")
    else:
        reason = "nothing is supervised: every assistant turn has weight 0; give one that shall be learned weight 1"
        found.flaw(example.column, reason)
