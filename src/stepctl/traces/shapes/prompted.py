"""Rows that hold a prompt and answers to it in columns of their own, as strings or as messages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepctl.traces.formats.values import kind
from stepctl.traces.shapes.columns import Found, no_chat_columns, system_text, text_flaws, tools_text
from stepctl.traces.shapes.examples import Completion, Conversation, Message, unmuted
from stepctl.traces.shapes.messages import Turns, looks_like_message, parsed_turns, turns, without_thinking

_KINDS = "a string or a list of messages"
_LIST = re.compile(r'\s*\[\s*\{\s*"(?:role|from|content|value)"')


class Prompt(NamedTuple):
    """What is asked. ``text`` is the prompt when it is a string that no conversation has been made of.

    ``column`` is its name for refusals, ``fields`` are the places of its ``messages``. ``chat``: answers are turns of
    a conversation even where they are strings.
    """

    column: str
    text: str | None
    messages: tuple[Message, ...]
    fields: tuple[str, ...]
    tools: str = ""
    chat: bool = False


def has_words(messages: Sequence[Message]) -> bool:
    """Whether a prompt says anything: system and tool turns may be empty."""
    return any(message.calls or message.content.strip() for message in messages)


def with_system(row: Mapping[str, Any], column: str, read: Turns, found: Found) -> Turns:
    """Put the column ``system`` before messages; both together are refused."""
    text = system_text(row, found) if row.get("system") is not None else ""
    if not text:
        return read
    if read.messages[0].role in ("system", "developer"):
        found.flaw("system", f"stands beside a {read.messages[0].role} turn in `{column}`: keep one of them")
    return Turns((Message("system", text), *read.messages), ("system", *read.places(column)))


def prompt_of_columns(row: Mapping[str, Any], column: str, found: Found, *, beside: str, empty: str = "") -> Prompt:
    """The prompt in ``column``: a string, or messages with the row's system text and tools.

    Args:
        row: the row.
        column: which holds it.
        found: where flaws go.
        beside: what to say when it is missing.
        empty: what to say besides when it is a string without words.
    """
    if column not in row:
        found.flaw(column, f"is missing{beside}")
        return Prompt(column, None, (), ())
    value = row[column]
    if column == "prompt" and not isinstance(value, list):
        found.flaws += text_flaws(column, value, what=_KINDS, hint=empty)
        note_lists(column, value, found)
        text = value if isinstance(value, str) else ""
        return Prompt(column, text, (Message("user", text),), (column,))
    return _messages(row, column, parsed_turns(column, value, found), found)


def messages_prompt(row: Mapping[str, Any], column: str, read: Turns | None, tools: str, found: Found) -> Prompt:
    """A prompt of messages that are read already: their weights mean nothing."""
    if read is None:
        return Prompt(column, None, (), (), tools)
    if not has_words(read.messages):
        found.flaw(column, "is only white space: write what the model is asked")
    read = with_system(row, column, read, found)
    return Prompt(column, None, unmuted(read.messages), read.places(column), tools)


def _messages(row: Mapping[str, Any], column: str, read: Turns | None, found: Found) -> Prompt:
    return messages_prompt(row, column, read, tools_text("tools", row.get("tools"), found), found)


def answer(
    row: Mapping[str, Any], prompt: Prompt, column: str, found: Found, *, beside: str, whole: str
) -> Conversation | Completion | None:
    """``prompt`` with its answer in ``column``: strings joined as they are, or messages in one conversation.

    A prompt that is a string is one user turn before messages.

    Args:
        row: the row.
        prompt: what is answered.
        column: which holds the answer.
        found: where flaws go; there is one when the result is None.
        beside: a column that is there, for the refusal of a missing one.
        whole: what to do when the column holds the prompt too.
    """
    if column not in row:
        found.flaw(column, f"is missing beside `{beside}`: write the reply, or leave the row out")
        return None
    value = row[column]
    if isinstance(value, list) or looks_like_message(value):
        return _conversation(row, prompt, column, value, whole, found)
    if isinstance(value, str) and prompt.text is None and prompt.messages and not prompt.chat:
        hint = "write it as a list with one assistant turn"
        found.flaw(column, f"is a string, but `{prompt.column}` is a list of messages: {hint}")
        return None
    return _string(row, prompt, column, value, found)


def _string(
    row: Mapping[str, Any], prompt: Prompt, column: str, value: Any, found: Found
) -> Conversation | Completion | None:
    if flaws := text_flaws(column, value, what=_KINDS):
        found.flaws += flaws
        return None
    note_lists(column, value, found)
    text = without_thinking(value) if found.thinking == "drop" else value
    if not text:
        found.flaw(column, "is thinking alone: nothing of this reply is left when thinking is dropped")
    if prompt.chat:
        messages = (*prompt.messages, Message("assistant", text))
        return Conversation(messages, len(prompt.messages), column, (*prompt.fields, column), prompt.tools)
    return Completion(prompt.text or "", text, column)


def _conversation(
    row: Mapping[str, Any], prompt: Prompt, column: str, value: Any, whole: str, found: Found
) -> Conversation | None:
    read = turns(column, value, found)
    if read is None:
        return None
    if not any(message.role == "assistant" for message in read.messages):
        found.flaw(column, f"has no assistant turn: nothing is supervised; {whole}")
    elif (role := read.messages[0].role) != "assistant":
        found.flaw(column, f"begins with a {role} turn, not with an assistant turn: {whole}")
    before = Turns(prompt.messages, prompt.fields)
    tools = prompt.tools
    if prompt.text is not None:
        tools = tools_text("tools", row.get("tools"), found)
        before = with_system(row, prompt.column, before, found)
    fields = (*before.fields, *read.places(column))
    return Conversation((*before.messages, *read.messages), len(before.messages), column, fields, tools)


def strings_only(
    row: Mapping[str, Any], prompt: Prompt, answered: Sequence[Conversation | Completion | None], found: Found
) -> None:
    """Refuse what only a conversation has a place for, when prompt and answers are strings."""
    if prompt.text is not None and any(isinstance(one, Completion) for one in answered):
        no_chat_columns(row, "these strings are trained as they are,", found, system=True)


def note_lists(column: str, value: Any, found: Found) -> None:
    """Note a string that may be meant as messages: a reply may well be JSON, so it stays a string."""
    if isinstance(value, str) and value[:1] in ("[", " ", "\n") and _LIST.match(value):
        found.note("messages_in_text", column, "looks like a list of messages in a string: it is trained as text")


def kinds_of(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """What the columns hold; a message by itself is a list of one."""
    return ["a list" if looks_like_message(row.get(name)) else kind(row.get(name)) for name in columns]
