"""Rows that hold a prompt and completions of it in columns of their own, as strings or as lists of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepctl.traces.shapes import Completion, Conversation, Flaw, Message, text_flaws, turns

_KINDS = "a string or a list of messages"


class Prompted(NamedTuple):
    """The completions, each with the prompt; none when ``flaws``. ``ignored`` names keys of messages not used."""

    answered: list[Conversation | Completion]
    flaws: list[Flaw]
    ignored: list[str]


class _Prompt(NamedTuple):
    text: str | None
    messages: tuple[Message, ...]
    fields: tuple[str, ...]


def prompted(row: Mapping[str, Any], columns: Sequence[str], *, no_prompt: str = "", whole: str) -> Prompted:
    """Take ``prompt`` with each of ``columns``: strings joined as they are, or messages in one conversation.

    A prompt that is a string is one user turn before a list of messages.

    Args:
        row: the row.
        columns: those that hold a completion.
        no_prompt: what to say besides when the prompt is missing.
        whole: what to do when a column holds the prompt too.
    """
    beside = next((name for name in ("prompt", *columns) if name in row), "")
    flaws: list[Flaw] = []
    ignored: list[str] = []
    prompt = _prompt(row, f" beside `{beside}`{no_prompt}", flaws, ignored)
    answered: list[Conversation | Completion] = []
    for column in columns:
        if column not in row:
            flaws.append(Flaw(column, f"is missing beside `{beside}`"))
        elif isinstance(row[column], list):
            answered.append(_conversation(prompt, column, row[column], whole, flaws, ignored))
        elif isinstance(row[column], str) and isinstance(row.get("prompt"), list):
            hint = "write it as a list with one assistant turn"
            flaws.append(Flaw(column, f"is a string, but `prompt` is a list of messages: {hint}"))
        else:
            flaws += text_flaws(column, row[column], what=_KINDS)
            answered.append(Completion(prompt.text or "", row[column], column))
    return Prompted([] if flaws else answered, flaws, ignored)


def has_words(messages: Sequence[Message]) -> bool:
    """Whether a prompt says anything: system and tool turns may be empty."""
    return any(message.content.strip() for message in messages)


def _prompt(row: Mapping[str, Any], where: str, flaws: list[Flaw], ignored: list[str]) -> _Prompt:
    if "prompt" not in row:
        flaws.append(Flaw("prompt", f"is missing{where}"))
        return _Prompt(None, (), ())
    value = row["prompt"]
    if not isinstance(value, list):
        flaws += text_flaws("prompt", value, what=_KINDS)
        return _Prompt(value, (Message("user", value),), ("prompt",))
    messages, wrong, unused = turns("prompt", value)
    if not wrong and not has_words(messages):
        wrong.append(Flaw("prompt", "is only white space"))
    flaws += wrong
    ignored += unused
    return _Prompt(None, messages, contents("prompt", len(messages)))


def _conversation(
    prompt: _Prompt, column: str, value: Any, whole: str, flaws: list[Flaw], ignored: list[str]
) -> Conversation:
    messages, wrong, unused = turns(column, value)
    if not wrong and not any(message.role == "assistant" for message in messages):
        wrong.append(Flaw(column, f"has no assistant turn: nothing is supervised; {whole}"))
    elif not wrong and (role := messages[0].role) != "assistant":
        wrong.append(Flaw(column, f"begins with a {role} turn, not with an assistant turn: {whole}"))
    flaws += wrong
    ignored += unused
    fields = prompt.fields + contents(column, len(messages))
    return Conversation(prompt.messages + messages, len(prompt.messages), column, fields)


def contents(column: str, count: int) -> tuple[str, ...]:
    """The fields of the texts of ``count`` messages in a column."""
    return tuple(f"{column}[{number}].content" for number in range(count))
