"""Lists of messages: as chat templates read them (role, content) and as ShareGPT has them (from, value).

A message is read strictly: what would be passed over and changes what the model learns is refused, other keys are
named. Parts of a content are texts, joined with nothing between.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from stepctl.traces.formats.values import kind
from stepctl.traces.shapes.called import call_text, calls_of, tie
from stepctl.traces.shapes.columns import Found, text_flaws
from stepctl.traces.shapes.content import content_of
from stepctl.traces.shapes.examples import ROLES, Conversation, Message, ToolCall
from stepctl.traces.shapes.inner import NotJson, read_json

_ROLES = frozenset(ROLES)
_SPEAKERS = {
    "system": "system",
    "developer": "developer",
    "human": "user",
    "user": "user",
    "tool": "tool",
    "observation": "tool",
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard", "function_call"), "assistant"),
}
_OTHER_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant", "observation": "tool", "function": "tool"}
_REFUSED = {
    "function_call": "is an older form: write `tool_calls`, a list of calls",
    "functions": "belongs to the whole row: write the column `tools`",
    "tools": "belongs to the whole row: write the column `tools`",
    "refusal": "is not content: write it as `content` if the model shall learn it",
    **dict.fromkeys(
        ("images", "image", "videos", "video", "audios", "audio"),
        "is not supported: only text is trained; leave the row out",
    ),
}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_SWITCHES = ("train", "training", "loss")
"""What other tools call a weight; to pass over one that is false would train what its author left out."""

_THINK = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_READ = frozenset(("role", "content", "tool_calls", "weight", "name", *_THOUGHTS, *_REFUSED))
_NO_MESSAGE = "an object with role and content"


class Turns(NamedTuple):
    """Messages that are read. ``fields`` says where each content stands; empty when each is ``[n].content``."""

    messages: tuple[Message, ...]
    fields: tuple[str, ...] = ()

    def places(self, column: str) -> tuple[str, ...]:
        """Where each content stands."""
        return self.fields or tuple(f"{column}[{number}].content" for number in range(len(self.messages)))


def looks_like_message(value: Any) -> bool:
    """Whether a value is meant as one message."""
    return isinstance(value, dict) and ("role" in value or "from" in value)


def without_thinking(text: str) -> str:
    """A reply without the ``<think>`` block that it begins with."""
    block = _THINK.match(text) if "<think>" in text else None
    return text[block.end() :] if block else text


def turns(column: str, value: Any, found: Found) -> Turns | None:
    """Read the list of messages (or the one message) in ``column``; None, and every flaw of all, when one is wrong."""
    if looks_like_message(value):
        one = _Message(column, column, value, found).read()
        return one and Turns((one[0],), (f"{column}.{one[1]}",))
    if not isinstance(value, list):
        found.flaw(column, f"is {kind(value)}, not a list of messages")
        return None
    if not value:
        found.flaw(column, "is empty: write its messages, or leave the row out")
        return None
    messages: list[Message] = []
    keys: list[str] = []
    for number, item in enumerate(value):
        if plain := _plain(item, found):
            messages.append(plain)
            keys.append("content")
        elif read := _Message(f"{column}[{number}]", f"{column}[]", item, found).read():
            messages.append(read[0])
            keys.append(read[1])
    if len(messages) < len(value):
        return None
    if "value" not in keys:
        return Turns(tuple(messages))
    return Turns(tuple(messages), tuple(f"{column}[{number}].{key}" for number, key in enumerate(keys)))


def parsed_turns(column: str, value: Any, found: Found) -> Turns | None:
    """As :func:`turns`, for a column that is never a text of its own: it may hold the list as JSON text."""
    if not isinstance(value, str):
        return turns(column, value, found)
    try:
        inside = read_json(value) if value.lstrip()[:1] == "[" else None
    except NotJson as error:
        found.flaw(column, f"{error.reason}: write a list of messages")
        return None
    if not isinstance(inside, list):
        found.flaw(column, "is a string, not a list of messages; use `text` for a text")
        return None
    return turns(column, inside, found)


def _plain(item: Any, found: Found) -> Message | None:
    """The common message, read fast: a role and a content with words."""
    if type(item) is not dict or len(item) != 2:
        return None
    role, content = item.get("role"), item.get("content")
    if type(content) is not str or type(role) is not str or role not in _ROLES or not content or content.isspace():
        return None
    if role == "assistant" and found.thinking == "drop" and "<think>" in content:
        return None
    return Message(role, content)


class _Message:
    """One message while it is read: ``place`` names it in flaws, ``each`` any message of its list in names of keys."""

    def __init__(self, place: str, each: str, value: Any, found: Found) -> None:
        self.place, self.each, self.value, self.found = place, each, value, found

    def read(self) -> tuple[Message, str] | None:
        """The message and the key of its content; None when something is wrong."""
        before = len(self.found.flaws)
        if not isinstance(self.value, dict):
            self._flaw("", f"is {kind(self.value)}, not {_NO_MESSAGE}")
            return None
        if not self.value.keys().isdisjoint(_REFUSED):
            for key, reason in _REFUSED.items():
                if self.value.get(key) not in (None, [], "", {}):
                    self._flaw(key, reason)
        if (form := self._form()) is None:
            return None
        speaker, key = form
        role = self._role(speaker)
        calls = self._calls(role, speaker, key)
        content = "" if speaker == "from" and calls and self.value.get("from") == "function_call" else None
        if content is None:
            content = self._content(role, key, calls)
        message = Message(
            role,
            content,
            self._thinking(role),
            calls,
            tie(self.place, self.value, "name", self.found),
            tie(self.place, self.value, "tool_call_id", self.found) if role == "tool" else None,
            self._weight(role),
        )
        read = _READ | {speaker, key} | ({"tool_call_id"} if role == "tool" else set())
        self.found.ignored += [f"{self.each}.{k}" for k, v in self.value.items() if v is not None and k not in read]
        return None if len(self.found.flaws) > before else (message, key)

    def _flaw(self, key: str, reason: str) -> None:
        self.found.flaw(f"{self.place}.{key}" if key else self.place, reason)

    def _form(self) -> tuple[str, str] | None:
        """The keys of its speaker and its words; None when it has those of both forms."""
        has = {key for key in ("role", "content", "from", "value") if self.value.get(key) is not None}
        if not has & {"role", "content"} and (has or ("from" in self.value and "role" not in self.value)):
            return "from", "value"
        if len(has) == 4 or (has & {"from", "value"} and not {"role", "content"} <= has):
            self._flaw("", "mixes `role` and `content` with `from` and `value`: keep one of the two forms")
            return None
        return "role", "content"

    def _role(self, key: str) -> str:
        """The role; empty when it is wrong."""
        role = self.value.get(key)
        if key not in self.value:
            self._flaw(key, f"is missing: write one of {', '.join(ROLES)}")
        elif not isinstance(role, str):
            self._flaw(key, f"is {kind(role)}, not a string")
        elif key == "from" and role in _SPEAKERS:
            return _SPEAKERS[role]
        elif key == "role" and role in _ROLES:
            return role
        else:
            known = ROLES if key == "role" else tuple(_SPEAKERS)
            hint = f": write `{_OTHER_NAMES[role]}`" if role in _OTHER_NAMES else ""
            self._flaw(key, f"is none of {', '.join(known)}{hint}")
        return ""

    def _calls(self, role: str, speaker: str, key: str) -> tuple[ToolCall, ...]:
        value = self.value.get("tool_calls")
        if speaker == "from" and self.value.get("from") == "function_call":
            text = self.value.get(key)
            if value not in (None, []):
                self._flaw("tool_calls", "stands beside a call in `value`: keep one of them")
            elif isinstance(text, str) and text.strip():
                return call_text(f"{self.place}.{key}", text, self.found)
            return ()
        if value not in (None, []) and role not in ("", "assistant"):
            self._flaw("tool_calls", f"stands in a {role} turn: only the assistant makes calls")
            return ()
        return calls_of(f"{self.place}.tool_calls", value, self.found)

    def _content(self, role: str, key: str, calls: tuple[ToolCall, ...]) -> str:
        field = f"{self.place}.{key}"
        value = self.value.get(key)
        called = bool(calls) or (role == "assistant" and self.value.get("tool_calls") not in (None, []))
        if value is None and called:
            return ""
        if key not in self.value:
            self._flaw(key, "is missing: write the words of this turn")
            return ""
        if isinstance(value, list):
            content = content_of(field, f"{self.each}.{key}", value, self.found)
            if content is None:
                return ""
        elif isinstance(value, str):
            content = value
        else:
            hint = ": write it as JSON text" if role == "tool" and isinstance(value, dict) else ""
            self.found.flaws += text_flaws(field, value, hint=hint)
            return ""
        if role == "assistant" and self.found.thinking == "drop":
            content = self._shorter(key, content, called)
        if role in ("user", "assistant") and not called:
            self.found.flaws += text_flaws(field, content)
        return content

    def _shorter(self, key: str, content: str, called: bool) -> str:
        shorter = without_thinking(content)
        if shorter or shorter == content or called:
            return shorter
        self._flaw(key, "is thinking alone: nothing of this reply is left when thinking is dropped")
        return content

    def _thinking(self, role: str) -> str:
        if self.found.thinking == "drop":
            return ""
        thoughts: dict[str, str] = {}
        for key in _THOUGHTS:
            value = self.value.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                self._flaw(key, f"is {kind(value)}, not a string")
            elif value.strip() and role not in ("", "assistant"):
                self._flaw(key, f"stands in a {role} turn: only the assistant thinks; remove it")
            elif value.strip():
                thoughts[key] = value
        if len(set(thoughts.values())) > 1:
            names = " and ".join(f"`{key}`" for key in thoughts)
            self._flaw(next(iter(thoughts)), f"differs from another of {names}: keep one of them")
        return next(iter(thoughts.values()), "")

    def _weight(self, role: str) -> bool:
        """Whether the turn may be learned."""
        for key in _SWITCHES:
            if role == "assistant" and self.value.get(key) not in (None, True):
                self._flaw(key, "is not true, and is not read: write `weight`: 0 for a turn that shall not be learned")
        weight = self.value.get("weight")
        if weight is None:
            return True
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            self._flaw("weight", f"is {kind(weight)}, not 0 or 1")
        elif weight not in (0, 1):
            self._flaw("weight", "is neither 0 nor 1: a turn is learned whole or not at all")
        elif role == "assistant":
            return bool(weight)
        elif role:
            reason = f"is ignored: a {role} turn is never learned"
            self.found.note("weight_ignored", f"{self.place}.weight", reason)
        return True


def weights(column: str, answered: Conversation, found: Found) -> None:
    """Refuse a weight of 0 in a completion that is learned whole; ``column`` is its name for flaws."""
    for number, message in enumerate(answered.messages):
        if number >= answered.prompt and not message.supervised:
            place = answered.field(number).rpartition(".")[0] or column
            found.flaw(f"{place}.weight", "is 0: weights are for SFT alone; remove it, or leave the row out")
