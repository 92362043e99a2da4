"""What rows of every method are made of, and the checks that they share. Torch-free and tokenizer-free.

A column that is null counts as absent when the row has another shape: tools fill columns up so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepctl.traces.read import RawRow, kind, printable
from stepctl.traces.rows import BadRow

ROLES = ("system", "developer", "user", "assistant", "tool")
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


class ToolCall(NamedTuple):
    """A call that the assistant makes; ``arguments`` is the JSON text of an object."""

    name: str
    arguments: str
    id: str | None = None

    def data(self) -> dict[str, Any]:
        """As templates read it: the arguments as an object."""
        call: dict[str, Any] = {
            "type": "function",
            "function": {"name": self.name, "arguments": json.loads(self.arguments)},
        }
        return call if self.id is None else {**call, "id": self.id}


class Message(NamedTuple):
    """One turn.

    ``thinking`` stands beside the content. ``name`` and ``call_id`` say which call a tool's answer belongs to. Only a
    ``supervised`` turn of the assistant may be learned; the others are context.
    """

    role: str
    content: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    call_id: str | None = None
    supervised: bool = True

    def data(self) -> dict[str, Any]:
        """As templates read it (the form of transformers' ``apply_chat_template``)."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.calls:
            message["tool_calls"] = [call.data() for call in self.calls]
        if self.name is not None:
            message["name"] = self.name
        if self.call_id is not None:
            message["tool_call_id"] = self.call_id
        return message


@dataclass(frozen=True)
class Conversation:
    """The assistant's turns are supervised, but for those among the first ``prompt`` messages.

    ``tools`` is the JSON text of the list of tools that the assistant may call, or empty. ``column`` holds the
    supervised turns; ``fields`` says where each text stands in the row when it is not in order in that column. Both
    are for refusals alone.
    """

    messages: tuple[Message, ...]
    prompt: int = 0
    column: str = field(default="messages", compare=False)
    fields: tuple[str, ...] = field(default=(), compare=False)
    tools: str = ""

    def field(self, number: int) -> str:
        """Where the text of a message stands in its row."""
        return self.fields[number] if self.fields else f"{self.column}[{number}].content"


@dataclass(frozen=True)
class Completion:
    """A prompt and its completion as strings: the completion, which is in ``column``, is supervised."""

    prompt: str
    completion: str
    column: str = field(default="completion", compare=False)


@dataclass(frozen=True)
class Text:
    """``text``: all of it is supervised."""

    text: str


@dataclass(frozen=True)
class Pair:
    """Two completions of one prompt, of which ``chosen`` is the better one."""

    chosen: Conversation | Completion
    rejected: Conversation | Completion


@dataclass(frozen=True)
class Feedback:
    """One completion of a prompt, and whether more of its kind is wanted."""

    answered: Conversation | Completion
    desirable: bool


Single = Conversation | Completion | Text
Example = Single | Pair | Feedback


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


class Turns(NamedTuple):
    """A list of messages: none when ``flaws``. ``ignored`` names the keys of messages that were not used."""

    messages: tuple[Message, ...]
    flaws: list[Flaw]
    ignored: list[str]


def shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items two sequences have in common at their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def given(row: Mapping[str, Any]) -> list[str]:
    """The columns of a row that are not null."""
    return [key for key, value in row.items() if value is not None]


def foreign(row: Mapping[str, Any], others: Mapping[str, str], method: str) -> list[Flaw]:
    """Columns that would change what the row means; passing over them would train something else.

    Args:
        row: the row.
        others: columns that do not belong to ``method``, and what they belong to.
        method: as a person writes it.
    """
    columns = given(row)
    flaws = [Flaw(key, f"belongs to {others[key]}, not to {method}") for key in columns if key in others]
    return flaws or [
        Flaw(key, f"{_CHANGES_THE_ROW[key]} are not supported yet")
        for key in columns
        if key in _CHANGES_THE_ROW and row[key] != []
    ]


def pick(row: Mapping[str, Any], columns: Mapping[str, str], shapes: str) -> str | Shaped:
    """Which shape a row has, or its refusal: it has none, or could be taken in more than one way.

    Args:
        row: the row.
        columns: each column of each shape, and the shape's name.
        shapes: all shapes, as a person reads them.
    """
    present = [key for key in given(row) if key in columns]
    found = present or [key for key in row if key in columns]
    kinds = {columns[key] for key in found}
    if not kinds:
        return no_shape(row, shapes)
    if len(kinds) > 1 and present:
        names = ", ".join(f"`{key}`" for key in found)
        return Shaped(None, [Flaw(None, f"has several shapes at once: {names}; keep one of {shapes}")], [])
    return next(kind for kind in columns.values() if kind in kinds)


def no_shape(row: Mapping[str, Any], shapes: str) -> Shaped:
    """The refusal of a row that has none of ``shapes``."""
    found = ", ".join(f"`{printable(key)}`" for key in list(row)[:8]) or "nothing"
    return Shaped(None, [Flaw(None, f"has none of {shapes}; it has {found}")], [])


def text_flaws(field: str, value: Any, *, hint: str = "", what: str = "a string") -> list[Flaw]:
    """What is wrong with a text that must have words."""
    if not isinstance(value, str):
        return [Flaw(field, f"is {kind(value)}, not {what}{hint}")]
    if not value:
        return [Flaw(field, f"is empty{hint}")]
    return [] if value.strip() else [Flaw(field, f"is only white space{hint}")]


def turns(column: str, value: Any) -> Turns:
    """Read the list of messages in ``column``: at least one, and every flaw of all."""
    if not isinstance(value, list):
        hint = "; it looks like JSON inside a string" if isinstance(value, str) and value.lstrip()[:1] == "[" else ""
        return Turns((), [Flaw(column, f"is {kind(value)}, not a list of messages{hint}")], [])
    if not value:
        return Turns((), [Flaw(column, "is empty")], [])
    flaws: list[Flaw] = []
    ignored: list[str] = []
    for number, message in enumerate(value):
        place = f"{column}[{number}]"
        if isinstance(message, dict):
            flaws += _message_flaws(place, message)
            ignored += [f"{column}[].{key}" for key in given(message) if key not in ("role", "content")]
        else:
            flaws.append(Flaw(place, f"is {kind(message)}, not an object with role and content"))
    messages = () if flaws else tuple(Message(m["role"], m["content"]) for m in value)
    return Turns(messages, flaws, ignored)


def _message_flaws(place: str, message: dict[str, Any]) -> list[Flaw]:
    flaws = [
        Flaw(f"{place}.{key}", f"{what} are not supported yet")
        for key, what in _CHANGES_THE_MESSAGE.items()
        if message.get(key) not in (None, [])
    ]
    if flaws:
        return flaws
    role = message.get("role")
    if "role" not in message:
        flaws.append(Flaw(f"{place}.role", "is missing"))
    elif not isinstance(role, str):
        flaws.append(Flaw(f"{place}.role", f"is {kind(role)}, not a string"))
    elif role not in ROLES:
        flaws.append(Flaw(f"{place}.role", f"is none of {', '.join(ROLES)}"))
    content = message.get("content")
    if "content" not in message:
        flaws.append(Flaw(f"{place}.content", "is missing"))
    elif isinstance(content, list):
        flaws.append(
            Flaw(f"{place}.content", f"is a list of parts{_part_types(content)}; only strings are supported yet")
        )
    elif not isinstance(content, str) or role in ("user", "assistant"):
        flaws += text_flaws(f"{place}.content", content)
    return flaws


def _part_types(parts: list[Any]) -> str:
    """Types of parts that are known words; another value could be text of the row."""
    types = {part.get("type") for part in parts if isinstance(part, dict) and isinstance(part.get("type"), str)}
    known = [name for name in _PART_TYPES if name in types]
    return f" ({', '.join(known)})" if known else ""
