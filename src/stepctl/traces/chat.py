"""Where the assistant's words are in a rendered conversation.

Nothing is guessed from markers. The rendering is compared with others of the same conversation: one whose reply is
replaced by a stand-in shows where the reply's content is, one that ends before the reply (with the generation prompt)
where the model would begin to write, and one that ends with the reply that its end-of-turn token is its own. A
conversation for which these do not agree is refused.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from stepctl.traces.shapes import Conversation, Message, shared
from stepctl.traces.template import RenderRefused
from stepctl.traces.tokenizer import TextTokenizer

_MARK = "qzxj7kvw"
_THINK = re.compile("</?think>")
_NOT_CLOSED = "the chat template ends this turn with no special token: the model would not learn to stop"


class Span(NamedTuple):
    """Supervised characters [start, end) of a rendering; ``content`` must be among their tokens' text."""

    start: int
    end: int
    content: str
    field: str


class Placed(NamedTuple):
    """A rendered conversation. ``injected`` when the template put a system text there that no message has."""

    text: str
    spans: tuple[Span, ...]
    injected: bool


class ConversationRefused(Exception):
    """A conversation cannot be masked; ``reason`` has no text of it."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


def squashed(text: str) -> str:
    """``text`` without white space and in one normal form: templates trim, tokenizers normalize."""
    return "".join(unicodedata.normalize("NFKC", text).split())


class ChatPlacer:
    """Places conversations with one tokenizer; remembers what depends on roles alone."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        closers = {token for token in tokenizer.added if token.strip()} | {tokenizer.eos_token}
        self._closers = _alternatives(closers)
        self._closed = re.compile(rf"\s*(?:{self._closers.pattern})")
        self._control = _alternatives({token for token in tokenizer.special if not _THINK.fullmatch(token)})
        # What a template may put between its generation prompt and the reply: empty thinking marks.
        plain = closers - tokenizer.special
        self._filler = re.compile(rf"(?:\s|{_THINK.pattern}|{_alternatives(plain).pattern})*")
        self._dropped: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._closing: set[str] = set()
        self._prompt: str | None = None
        self._injects: bool | None = None

    def place(self, conversation: Conversation, *, supervise: bool = True) -> Placed:
        """Render a conversation and find the spans of its supervised turns (none when not ``supervise``).

        Raises:
            ConversationRefused: the template refuses it, leaves a message out, or its replies cannot be found exactly.
            UsageError: the template is no valid Jinja.
        """
        messages = conversation.messages
        for number, message in enumerate(messages):
            if found := self._control.search(message.content):
                reason = f"spells the control token {found.group()}: the chat template writes those itself"
                raise ConversationRefused(conversation.field(number), reason)
        try:
            text = self._render(messages)
            self._check_kept(conversation, text)
            spans = self._spans(conversation, text) if supervise else ()
        except RenderRefused as error:
            raise ConversationRefused(conversation.column, error.reason) from None
        has_system = any(message.role in ("system", "developer") for message in messages)
        return Placed(text, spans, not has_system and self._injects_system())

    def _render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        return self._tokenizer.render([message.data() for message in messages], prompt)

    def _try(self, messages: Sequence[Message], *, prompt: bool = False) -> str | None:
        """As :meth:`_render`; None when the template does not take these messages (a part of a conversation)."""
        try:
            return self._render(messages, prompt=prompt)
        except RenderRefused:
            return None

    def _check_kept(self, conversation: Conversation, text: str) -> None:
        """Refuse a message that the template leaves out in silence (Qwen does so with ``developer``)."""
        messages = conversation.messages
        roles = tuple(message.role for message in messages)
        if roles not in self._dropped:
            marks = [f"{_MARK}{number:06d}x" for number in range(len(roles))]
            probe = self._try([Message(role, mark) for role, mark in zip(roles, marks, strict=True)])
            self._dropped[roles] = (
                () if probe is None else tuple(n for n, mark in enumerate(marks) if mark not in probe)
            )
        whole = squashed(text)
        for number, message in enumerate(messages):
            reply = message.role == "assistant"
            looked_at_later = reply and number >= conversation.prompt
            # A reply that is context alone may lose its reasoning: so it does when the model answers.
            words = message.content.rpartition("</think>")[2] if reply else message.content
            if number in self._dropped[roles] or not (looked_at_later or _shows(whole, words)):
                reason = f"the chat template leaves out the text of this {message.role} turn"
                raise ConversationRefused(conversation.field(number), reason)

    def _spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        messages = conversation.messages
        numbers = [n for n, message in enumerate(messages) if message.role == "assistant" and n >= conversation.prompt]
        places = self._together(messages, numbers, text) or [self._alone(conversation, n, text) for n in numbers]
        return tuple(self._span(conversation, n, text, *place) for n, place in zip(numbers, places, strict=True))

    def _together(self, messages: Sequence[Message], numbers: Sequence[int], text: str) -> list[tuple[int, int]] | None:
        """Where the contents are, from one rendering; None unless the template writes each as it is or trimmed."""
        marked = [Message(m.role, f"{_MARK}{n:06d}x") if n in numbers else m for n, m in enumerate(messages)]
        pieces = re.split(rf"{_MARK}\d{{6}}x", self._try(marked) or "")
        if len(pieces) != len(numbers) + 1:
            return None
        for trimmed in (False, True):
            contents = [messages[n].content.strip() if trimmed else messages[n].content for n in numbers]
            joined, places = pieces[0], []
            for content, piece in zip(contents, pieces[1:], strict=True):
                places.append((len(joined), len(joined) + len(content)))
                joined += content + piece
            if joined == text:
                return places
        return None

    def _alone(self, conversation: Conversation, number: int, text: str) -> tuple[int, int]:
        """Where one reply's content is: between what does not change when the reply does."""
        messages, field = conversation.messages, conversation.field(number)
        mark = _MARK
        while mark in text:
            mark += "z"
        probe = self._render([*messages[:number], Message("assistant", mark), *messages[number + 1 :]])
        if probe.count(mark) != 1:
            raise ConversationRefused(field, f"the chat template writes this reply {probe.count(mark)} times")
        head, _, tail = probe.partition(mark)
        start, end = shared(head, text), len(text) - len(tail)
        if not text.endswith(tail) or start > end:
            raise ConversationRefused(field, "the chat template's text after this reply depends on the reply")
        return start, end

    def _span(self, conversation: Conversation, number: int, text: str, content_start: int, content_end: int) -> Span:
        messages, field = conversation.messages, conversation.field(number)
        start = self._start(messages[:number], text, content_start)
        if start is None:
            raise ConversationRefused(field, "the chat template's generation prompt does not begin this turn")
        closed = self._closed.match(text, content_end)
        if closed is None or not self._closes(closed.group(), messages[:number]):
            raise ConversationRefused(field, _NOT_CLOSED)
        content = messages[number].content.strip()
        if _THINK.search(text[:start].rstrip()[-len("<think>") :]):
            content = content.removeprefix("<think>")  # the generation prompt has it
        if squashed(content) not in squashed(text[start : closed.end()]):
            reason = "the chat template leaves out a part of this reply (the reasoning of an earlier turn?)"
            raise ConversationRefused(field, reason)
        return Span(start, closed.end(), content, field)

    def _closes(self, token: str, before: Sequence[Message]) -> bool:
        """Whether ``token`` ends a turn, rather than begins the next: a reply that comes last must have one too."""
        if token not in self._closing:
            last = self._try([*before, Message("assistant", _MARK)])
            if last is None or not self._closed.match(last, last.rfind(_MARK) + len(_MARK)):
                return False
            self._closing.add(token)
        return True

    def _start(self, before: Sequence[Message], text: str, content_start: int) -> int | None:
        """Where the model would begin to write, in ``text``; None when the renderings do not agree on it."""
        prompt = self._generation_prompt()
        if prompt and text.endswith(prompt, 0, content_start):
            return content_start
        prefix = self._try(before, prompt=True)
        if prefix is not None:
            # A reply may begin with the thinking mark that the prompt ends with.
            over = len(prefix) - content_start
            if text.startswith(prefix) and (over <= 0 or self._filler.fullmatch(text, content_start, len(prefix))):
                return len(prefix)
            # The prompt and this turn differ in thinking marks alone.
            at = shared(prefix, text[:content_start])
            at -= len(re.search(r"(<[^<>]*)?$", text[:at]).group())  # type: ignore[union-attr]
            if self._filler.fullmatch(text, at, content_start) and self._filler.fullmatch(prefix, at):
                return at
        # An earlier turn renders differently when the conversation ends after it; the prompt stands before this one.
        at = text.rfind(prompt, 0, content_start) if prompt else -1
        if at >= 0 and self._filler.fullmatch(text, at + len(prompt), content_start):
            return at + len(prompt)
        return None

    def _generation_prompt(self) -> str:
        """What the template adds for the model to go on; empty when it adds nothing or that cannot be told."""
        if self._prompt is None:
            ask = [Message("user", _MARK)]
            with_prompt, without = self._try(ask, prompt=True), self._try(ask)
            if with_prompt is None or without is None:
                self._prompt = ""
                return self._prompt
            atoms = self._atoms(with_prompt.rpartition(_MARK)[2])
            same = shared(atoms, self._atoms(without.rpartition(_MARK)[2]))
            self._prompt = "".join(atoms[same:])
        return self._prompt

    def _atoms(self, text: str) -> list[str]:
        """``text`` split at added tokens, which are kept."""
        parts: list[str] = []
        at = 0
        for found in self._closers.finditer(text):
            parts += [text[at : found.start()], found.group()]
            at = found.end()
        return [part for part in (*parts, text[at:]) if part]

    def _injects_system(self) -> bool:
        """Whether the template puts words before a conversation that has no system message."""
        if self._injects is None:
            marks = [f"{_MARK}{number}x" for number in range(3)]
            roles = ("user", "assistant", "user")
            probe = self._try([Message(role, mark) for role, mark in zip(roles, marks, strict=True)])
            pieces = [] if probe is None else re.split("|".join(marks), probe)
            self._injects = False
            if len(pieces) == 4:
                tokens = _alternatives(self._tokenizer.added | {self._tokenizer.eos_token})
                first, again = (tokens.sub("\0", piece) for piece in (pieces[0], pieces[2]))
                header = shared(first[::-1], again[::-1])
                words = re.findall(r"\w+", first[: len(first) - header])
                self._injects = any(word not in ("system", "user") for word in words)
        return self._injects


def _alternatives(tokens: set[str] | frozenset[str]) -> re.Pattern[str]:
    """One of ``tokens``, longer ones first; matches nothing when there is none."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


def _shows(whole: str, content: str) -> bool:
    """Whether a squashed rendering has a message's text, as it is or as ``tojson`` writes it."""
    return squashed(content) in whole or squashed(_escaped(content)) in whole


def _escaped(content: str) -> str:
    """``content`` as a template's ``tojson`` writes it."""
    return json.dumps(content, ensure_ascii=False)[1:-1]
