"""The shapes of a row for supervised fine-tuning.

A row has one of ``messages``, ``prompt`` + ``completion``, or ``text``. Each row is taken by its own shape.
"""

from __future__ import annotations

from typing import Any

from stepctl.traces.shapes import (
    Completion,
    Conversation,
    Flaw,
    Shaped,
    Text,
    foreign,
    given,
    pick,
    text_flaws,
    turns,
)

SHAPES = "`messages`, `prompt` and `completion`, or `text`"
_SHAPE_COLUMNS = {"messages": "messages", "prompt": "prompt", "completion": "prompt", "text": "text"}
_OTHERS = {
    "chosen": "DPO preferences",
    "rejected": "DPO preferences",
    "label": "KTO labels",
    "desirable": "KTO labels",
    "labels": "labels",
}


def shape(row: dict[str, Any], *, need_assistant: bool = True) -> Shaped:
    """Take a row by its shape.

    ``need_assistant`` refuses conversations without an assistant's turn: nothing in them is supervised then.
    """
    if flaws := foreign(row, _OTHERS, "SFT"):
        return Shaped(None, flaws, [])
    picked = pick(row, _SHAPE_COLUMNS, SHAPES)
    if isinstance(picked, Shaped):
        return picked
    ignored = [key for key in given(row) if key not in _SHAPE_COLUMNS]
    if picked == "messages":
        return _conversation(row["messages"], ignored, need_assistant)
    if picked == "prompt":
        return _completion(row, ignored)
    flaws = text_flaws("text", row["text"])
    return Shaped(None if flaws else Text(row["text"]), flaws, ignored)


def _completion(row: dict[str, Any], ignored: list[str]) -> Shaped:
    flaws: list[Flaw] = []
    for field, other, hint in (
        ("prompt", "completion", "; use `text` for a row without one"),
        ("completion", "prompt", ""),
    ):
        if field not in row:
            flaws.append(Flaw(field, f"is missing beside `{other}`{hint}"))
        else:
            chat = "; use `messages` for a chat" if isinstance(row[field], list) else hint
            flaws += text_flaws(field, row[field], hint=chat)
    return Shaped(None if flaws else Completion(row["prompt"], row["completion"]), flaws, ignored)


def _conversation(value: Any, ignored: list[str], need_assistant: bool) -> Shaped:
    messages, flaws, unused = turns("messages", value)
    if not flaws and need_assistant and not any(message.role == "assistant" for message in messages):
        flaws.append(Flaw("messages", "has no assistant turn: nothing is supervised"))
    return Shaped(None if flaws else Conversation(messages), flaws, ignored + unused)
