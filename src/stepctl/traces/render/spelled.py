"""Control tokens that the texts of a row spell: kept apart from those that the chat template writes.

Each is replaced by a plain word that nothing else has. So a rendering shows where the spelled ones are, and no template
or tokenizer takes them for its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from stepctl.traces.render.probe import longer_than
from stepctl.traces.render.tokenizer import TextTokenizer, alternatives
from stepctl.traces.shapes.examples import Conversation, Message

THINK = re.compile("</?think>")
_WORD = "jx9zkwqv"


def control_tokens(tokenizer: TextTokenizer) -> re.Pattern[str]:
    """Any control token: the special ones, but for thinking marks, which are of the reply."""
    return alternatives({token for token in tokenizer.special if not THINK.fullmatch(token)})


@dataclass(frozen=True)
class Spelled:
    """A conversation that spells control tokens.

    Attributes:
        hidden: the conversation with words in their place.
        tokens: the token of each word.
        field: of the first text that spells one.
    """

    hidden: Conversation
    tokens: Mapping[str, str]
    field: str

    def reason(self, why: str) -> str:
        """The reason of a refusal: the token and ``why`` it cannot be text."""
        token = next(iter(self.tokens.values()))
        return f"spells the control token {token}: {why}; take it out, or set train.parse_special_tokens = true"

    @staticmethod
    def of(conversation: Conversation, control: re.Pattern[str]) -> Spelled | None:
        """The control tokens that a conversation's texts spell; None when there is none."""
        field = next(_fields(conversation, control), None)
        if field is None:
            return None
        texts: list[str] = []
        _map(conversation, lambda text: texts.append(text) or text)  # type: ignore[func-returns-value]
        base = longer_than(_WORD, texts)
        found = dict.fromkeys(token for text in texts for token in control.findall(text))
        words = {token: f"{base}{number:04d}y" for number, token in enumerate(found)}
        hidden = _map(conversation, lambda text: control.sub(lambda match: words[match.group()], text))
        return Spelled(hidden, {word: token for token, word in words.items()}, field)


class Moved(NamedTuple):
    """How places moved when words were put back: [start, end) of each word before, of its token after."""

    words: list[tuple[int, int]]
    tokens: tuple[tuple[int, int], ...]

    def place(self, before: int) -> int:
        """The new place of one that is inside no word."""
        shift = 0
        for (_, end), (_, new_end) in zip(self.words, self.tokens, strict=True):
            if before < end:
                break
            shift = new_end - end
        return before + shift


def put_back(text: str, tokens: Mapping[str, str]) -> tuple[str, Moved]:
    """A rendering with the tokens instead of their words, and how its places moved."""
    parts: list[str] = []
    words: list[tuple[int, int]] = []
    placed: list[tuple[int, int]] = []
    at = length = 0
    for found in alternatives(set(tokens)).finditer(text):
        token = tokens[found.group()]
        start = length + found.start() - at
        parts += [text[at : found.start()], token]
        words.append(found.span())
        placed.append((start, start + len(token)))
        at, length = found.end(), start + len(token)
    return "".join([*parts, text[at:]]), Moved(words, tuple(placed))


def _fields(conversation: Conversation, control: re.Pattern[str]) -> Iterator[str]:
    """The fields of texts that spell a control token."""
    for number, message in enumerate(conversation.messages):
        if control.search(message.content) or (message.thinking and control.search(message.thinking)):
            yield conversation.field(number)
        if message.calls or message.name is not None or message.call_id is not None:
            names = [message.name or "", message.call_id or ""]
            for call in message.calls:
                names += [call.name, call.id or "", _unescaped(call.arguments)]
            if any(control.search(name) for name in names):
                yield conversation.field(number).removesuffix(".content")
    if conversation.tools and control.search(_unescaped(conversation.tools)):
        yield "tools"


@lru_cache(maxsize=64)
def _unescaped(text: str) -> str:
    """JSON text without escapes of characters that need none."""
    return json.dumps(json.loads(text), ensure_ascii=False) if "\\" in text else text


def _map(conversation: Conversation, change: Callable[[str], str]) -> Conversation:
    """A conversation with every text of it changed."""
    tools = conversation.tools and _map_json(conversation.tools, change)
    return replace(conversation, messages=tuple(_map_message(m, change) for m in conversation.messages), tools=tools)


def _map_message(message: Message, change: Callable[[str], str]) -> Message:
    calls = tuple(
        call._replace(
            name=change(call.name),
            arguments=_map_json(call.arguments, change),
            id=None if call.id is None else change(call.id),
        )
        for call in message.calls
    )
    return message._replace(
        content=change(message.content),
        thinking=change(message.thinking),
        calls=calls,
        name=None if message.name is None else change(message.name),
        call_id=None if message.call_id is None else change(message.call_id),
    )


def _map_json(text: str, change: Callable[[str], str]) -> str:
    return json.dumps(_map_value(json.loads(text), change), ensure_ascii=False)


def _map_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_value(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_value(item, change) for key, item in value.items()}
    return value
