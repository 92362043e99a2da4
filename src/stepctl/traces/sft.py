"""The shapes of a row for supervised fine-tuning, and what is wrong with one. Torch-free and tokenizer-free.

A row has one of ``messages``, ``prompt`` + ``completion``, or ``text``. Each row is taken by its own shape. A column
that is null counts as absent when the row has another shape: tools fill columns up so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from stepctl.traces.read import RawRow, kind, printable
from stepctl.traces.rows import BadRow

ROLES = ("system", "developer", "user", "assistant", "tool")
SHAPES = "`messages`, `prompt` and `completion`, or `text`"
_SHAPE_COLUMNS = {"messages": "messages", "prompt": "prompt", "completion": "prompt", "text": "text"}
_OTHER_METHODS = {"chosen": "DPO preferences", "rejected": "DPO preferences", "label": "KTO labels", "labels": "labels"}
_CHANGES_THE_ROW = {
    "tools": "tools",
    "functions": "tools",
    "weight": "weights of rows",
    "images": "images",
    "videos": "videos",
    "audios": "sounds",
    "chat_template_kwargs": "template arguments",
}
_CHANGES_THE_MESSAGE = {
    "tool_calls": "tool calls",
    "function_call": "tool calls",
    "weight": "weights of messages",
    "reasoning_content": "separate reasoning texts",
    "reasoning": "separate reasoning texts",
    "thinking": "separate reasoning texts",
}
_PART_TYPES = (
    "text",
    "image",
    "image_url",
    "input_image",
    "video",
    "audio",
    "input_audio",
    "file",
    "refusal",
    "thinking",
)


class Message(NamedTuple):
    """One turn."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """``messages``: the assistant's turns are supervised."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Completion:
    """``prompt`` and ``completion``: the completion is supervised."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Text:
    """``text``: all of it is supervised."""

    text: str


Example = Conversation | Completion | Text


class Flaw(NamedTuple):
    """One thing that is wrong with a row."""

    field: str | None
    reason: str


class Shaped(NamedTuple):
    """A row by its shape: the example (None when ``flaws``) and the names of columns that were not used."""

    example: Example | None
    flaws: list[Flaw]
    ignored: list[str]

    def bad(self, row: RawRow) -> list[BadRow]:
        """The flaws as bad rows."""
        return [BadRow(file=row.file, line=row.line, field=field, reason=reason) for field, reason in self.flaws]


def shape(row: dict[str, Any], *, need_assistant: bool = True) -> Shaped:
    """Take a row by its shape.

    ``need_assistant`` refuses conversations without an assistant's turn: nothing in them is supervised then.
    """
    given = [key for key, value in row.items() if value is not None]
    if flaws := _foreign(row, given):
        return Shaped(None, flaws, [])
    columns = [key for key in given if key in _SHAPE_COLUMNS] or [key for key in row if key in _SHAPE_COLUMNS]
    shapes = {_SHAPE_COLUMNS[key] for key in columns}
    if len(shapes) > 1 and any(key in given for key in columns):
        names = ", ".join(f"`{key}`" for key in columns)
        return Shaped(None, [Flaw(None, f"has several shapes at once: {names}; keep one of {SHAPES}")], [])
    ignored = [key for key in given if key not in _SHAPE_COLUMNS]
    if not shapes:
        found = ", ".join(f"`{printable(key)}`" for key in list(row)[:8]) or "nothing"
        return Shaped(None, [Flaw(None, f"has none of {SHAPES}; it has {found}")], [])
    if "messages" in shapes:
        return _conversation(row["messages"], ignored, need_assistant)
    if "prompt" in shapes:
        return _completion(row, ignored)
    flaws = _text_flaws("text", row["text"])
    return Shaped(None if flaws else Text(row["text"]), flaws, ignored)


def _foreign(row: dict[str, Any], given: list[str]) -> list[Flaw]:
    """Columns that would change what the row means; passing over them would train something else."""
    other = [Flaw(key, f"belongs to {_OTHER_METHODS[key]}, not to SFT") for key in given if key in _OTHER_METHODS]
    return other or [
        Flaw(key, f"{_CHANGES_THE_ROW[key]} are not supported yet")
        for key in given
        if key in _CHANGES_THE_ROW and row[key] != []
    ]


def _text_flaws(field: str, value: Any, *, hint: str = "") -> list[Flaw]:
    if not isinstance(value, str):
        return [Flaw(field, f"is {kind(value)}, not a string{hint}")]
    if not value:
        return [Flaw(field, f"is empty{hint}")]
    return [] if value.strip() else [Flaw(field, f"is only white space{hint}")]


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
            flaws += _text_flaws(field, row[field], hint=chat)
    return Shaped(None if flaws else Completion(row["prompt"], row["completion"]), flaws, ignored)


def _conversation(value: Any, ignored: list[str], need_assistant: bool) -> Shaped:
    if not isinstance(value, list):
        hint = "; it looks like JSON inside a string" if isinstance(value, str) and value.lstrip()[:1] == "[" else ""
        return Shaped(None, [Flaw("messages", f"is {kind(value)}, not a list of messages{hint}")], ignored)
    if not value:
        return Shaped(None, [Flaw("messages", "is empty")], ignored)
    flaws: list[Flaw] = []
    for number, message in enumerate(value):
        field = f"messages[{number}]"
        if isinstance(message, dict):
            flaws += _message_flaws(field, message)
            ignored += [
                f"messages[].{key}" for key, v in message.items() if key not in ("role", "content") and v is not None
            ]
        else:
            flaws.append(Flaw(field, f"is {kind(message)}, not an object with role and content"))
    if not flaws and need_assistant and not any(message["role"] == "assistant" for message in value):
        flaws.append(Flaw("messages", "has no assistant turn: nothing is supervised"))
    if flaws:
        return Shaped(None, flaws, ignored)
    return Shaped(Conversation(tuple(Message(m["role"], m["content"]) for m in value)), [], ignored)


def _message_flaws(field: str, message: dict[str, Any]) -> list[Flaw]:
    flaws = [
        Flaw(f"{field}.{key}", f"{what} are not supported yet")
        for key, what in _CHANGES_THE_MESSAGE.items()
        if message.get(key) not in (None, [])
    ]
    if flaws:
        return flaws
    role = message.get("role")
    if "role" not in message:
        flaws.append(Flaw(f"{field}.role", "is missing"))
    elif not isinstance(role, str):
        flaws.append(Flaw(f"{field}.role", f"is {kind(role)}, not a string"))
    elif role not in ROLES:
        flaws.append(Flaw(f"{field}.role", f"is none of {', '.join(ROLES)}"))
    content = message.get("content")
    if "content" not in message:
        flaws.append(Flaw(f"{field}.content", "is missing"))
    elif isinstance(content, list):
        flaws.append(
            Flaw(f"{field}.content", f"is a list of parts{_part_types(content)}; only strings are supported yet")
        )
    elif not isinstance(content, str) or role in ("user", "assistant"):
        flaws += _text_flaws(f"{field}.content", content)
    return flaws


def _part_types(parts: list[Any]) -> str:
    """Types of parts that are known words; another value could be text of the row."""
    types = {part.get("type") for part in parts if isinstance(part, dict) and isinstance(part.get("type"), str)}
    known = [name for name in _PART_TYPES if name in types]
    return f" ({', '.join(known)})" if known else ""
