"""What rows of every method are made of. Torch-free and tokenizer-free."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from stepctl.traces.formats.values import RawRow
from stepctl.traces.rows import BadRow

ROLES = ("system", "developer", "user", "assistant", "tool")
Thinking = Literal["keep", "drop"]
"""What becomes of the assistant's thinking: of the fields that hold it, and of a leading ``<think>`` block."""


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

    ``thinking`` stands beside the content. ``name`` is the speaker's; with ``call_id`` it says which call a tool's
    answer belongs to. Only a ``supervised`` turn of the assistant may be learned; the others are context.
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
    """One thing that is wrong with a row, and how to mend it."""

    field: str | None
    reason: str


class Note(NamedTuple):
    """One thing that a person should know of a row that is not bad for it; ``reason`` has no text of the row."""

    code: str
    field: str
    reason: str


class Shaped(NamedTuple):
    """A row by its shape: the example (None when ``flaws``) and the names of columns that were not used.

    ``kind`` names the shape, also of a bad row as far as its columns tell it; it is empty when they do not.
    """

    example: Example | None
    flaws: list[Flaw]
    ignored: list[str]
    kind: str = ""
    notes: Sequence[Note] = ()

    def bad(self, row: RawRow) -> list[BadRow]:
        """The flaws as bad rows."""
        return [BadRow(file=row.file, line=row.line, field=field, reason=reason) for field, reason in self.flaws]


def shared(first: Sequence[Any], second: Sequence[Any]) -> int:
    """How many items two sequences have in common at their beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def unmuted(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages without their weights, which mean nothing in a prompt."""
    if all(message.supervised for message in messages):
        return messages
    return tuple(message if message.supervised else message._replace(supervised=True) for message in messages)


def prompt_of(example: Example) -> Hashable | None:
    """What stands before the last supervised turn, to tell the same prompt with another answer; None for a text.

    A prompt that is a string equals none that is a conversation.
    """
    if isinstance(example, Text):
        return None
    if isinstance(example, Pair | Feedback):
        single = example.chosen if isinstance(example, Pair) else example.answered
        end = single.prompt if isinstance(single, Conversation) else 0
    else:
        single, end = example, -1
    if isinstance(single, Completion):
        return single.prompt
    if end < 0:
        messages = single.messages
        learned = (n for n in range(len(messages) - 1, single.prompt - 1, -1) if messages[n].role == "assistant")
        end = next((n for n in learned if messages[n].supervised), -1)
    return None if end < 0 else (unmuted(single.messages[:end]), single.tools)
