"""Finds supervised spans by comparing renderings: the way for conversations that no skeleton fits."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from stepctl.traces.render.encoded import squashed
from stepctl.traces.render.kept import learned, shows, shows_calls, turn
from stepctl.traces.render.probe import (
    CONTENT,
    KEY,
    MARK,
    THINKING,
    Found,
    blank,
    common_end,
    common_start,
    find_marks,
    mark_not_in,
    stand_in,
)
from stepctl.traces.render.refusal import (
    DEPENDS,
    LEAVES_OUT_A_PART,
    LEAVES_OUT_CALLS,
    LEAVES_OUT_THINKING,
    NO_PROMPT,
    NOT_CLOSED,
    ConversationRefused,
    leaves_out_text,
)
from stepctl.traces.render.spelled import THINK, control_tokens
from stepctl.traces.render.template import RenderRefused
from stepctl.traces.render.tokenizer import TextTokenizer, alternatives
from stepctl.traces.shapes.examples import Conversation, Message, shared


class Span(NamedTuple):
    """Supervised characters [start, end) of a rendering; ``content`` must be among their tokens' text."""

    start: int
    end: int
    content: str
    field: str


class _Words(NamedTuple):
    """Where the words of a reply are. ``content_last``: nothing but white space stands between them and the end."""

    start: int
    end: int
    content_first: bool
    content_last: bool


class Places:
    """Renders with one tokenizer and compares."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        closers = {token for token in tokenizer.added if token.strip()} | {tokenizer.eos_token}
        self._closers = alternatives(closers)
        self._closed = re.compile(rf"\s*(?:{self._closers.pattern})")
        self._control = control_tokens(tokenizer)
        # What a template may put between its generation prompt and the reply: empty thinking marks.
        plain = closers - tokenizer.special
        self._filler = re.compile(rf"(?:\s|{THINK.pattern}|{alternatives(plain).pattern})*")
        self._closing: set[tuple[str, bool]] = set()
        self._prompts: dict[bool, str] = {}

    def render(self, messages: Sequence[Message], tools: str, *, prompt: bool = False) -> str:
        """A conversation as text.

        Raises:
            RenderRefused: the template refuses it or fails.
        """
        data = [message.data() for message in messages]
        if any(message.calls for message in messages) and self._arguments_are_text:
            for message, made in zip(messages, data, strict=True):
                for call, told in zip(message.calls, made.get("tool_calls", ()), strict=True):
                    told["function"]["arguments"] = call.arguments
        return self._tokenizer.render(data, prompt, tools)

    @cached_property
    def _arguments_are_text(self) -> bool:
        """Whether the template takes a call's arguments as JSON text alone, as some do that add them to other text."""
        turns: list[dict[str, object]] = [{"role": "user", "content": MARK}]
        for arguments, taken in (({MARK: MARK}, False), (json.dumps({MARK: MARK}), True)):
            call = {"type": "function", "id": "call00001", "function": {"name": MARK, "arguments": arguments}}
            try:
                self._tokenizer.render([*turns, {"role": "assistant", "content": "", "tool_calls": [call]}], False)
            except RenderRefused:
                continue
            return taken
        return False

    def attempt(self, messages: Sequence[Message], tools: str, *, prompt: bool = False) -> str | None:
        """As :meth:`render`; None when the template does not take these messages (a part of a conversation)."""
        try:
            return self.render(messages, tools, prompt=prompt)
        except RenderRefused:
            return None

    def check_kept(self, conversation: Conversation, text: str, supervise: bool) -> None:
        """Refuse a message whose words a template leaves out because of what they are.

        A reply that is context alone may lose its reasoning: so it does when the model answers. Those that are
        supervised are looked at when they are placed.
        """
        whole = squashed(text)
        supervised = set(learned(conversation)) if supervise else set()
        for number, message in enumerate(conversation.messages):
            if number in supervised:
                continue
            content = message.content
            if not shows(whole, content.rpartition("</think>")[2] if message.role == "assistant" else content):
                raise ConversationRefused(conversation.field(number), leaves_out_text(message.role))
            if not shows_calls(whole, message):
                raise ConversationRefused(f"{turn(conversation, number)}.tool_calls", LEAVES_OUT_CALLS)

    def spans(self, conversation: Conversation, text: str) -> tuple[Span, ...]:
        """The spans of the supervised turns of a rendering.

        Raises:
            ConversationRefused: they cannot be found exactly.
        """
        numbers = learned(conversation)
        words = self._together(conversation, numbers, text)
        if words is None:
            words = [self._alone(conversation, number, text) for number in numbers]
        return tuple(self._span(conversation, number, text, at) for number, at in zip(numbers, words, strict=True))

    def _together(self, conversation: Conversation, numbers: Sequence[int], text: str) -> list[_Words] | None:
        """Where the words are, from one rendering; None unless control tokens show what stands between them."""
        base = mark_not_in(text)
        messages = [stand_in(m, n, base) if n in numbers else m for n, m in enumerate(conversation.messages)]
        probe = self.attempt(messages, conversation.tools)
        marks = find_marks(probe, base) if probe is not None else []
        if probe is None or [n for n, _ in _runs(marks)] != list(numbers):
            return None
        runs = [run for _, run in _runs(marks)]
        if any(_lacks(conversation.messages[n], run) for n, run in zip(numbers, runs, strict=True)):
            return None
        start, at, places = common_start(probe[: runs[0][0].start] if runs else "", text), 0, []
        for number, run in enumerate(runs):
            last = number + 1 == len(runs)
            piece = probe[run[-1].end : len(probe) if last else runs[number + 1][0].start]
            exact = run[-1].kind == CONTENT
            core = self._core(piece, exact, last)
            if core is None:
                return None
            begins, ends = core
            found = len(text) - (ends - begins) if last else text.find(piece[begins:ends], max(at, start))
            if found < max(at, start) or not text.startswith(piece[begins:ends], found):
                return None
            end = found - common_end(piece[:begins], text[start:found])
            inside = probe[run[0].start : run[-1].end]
            if (exact and found - end != begins) or self._count(text[start:end]) != self._count(inside):
                return None
            places.append(_Words(start, end, run[0].kind == CONTENT, exact))
            at = found + ends - begins
            start = at + common_start(piece[ends:], text[at : at + len(piece) - ends])
        return places

    def _core(self, piece: str, exact: bool, last: bool) -> tuple[int, int] | None:
        """[start, end) of what stands for certain between two replies: from the first control token to the last."""
        first = (self._closers if exact else self._control).search(piece)
        if first is None:
            return None
        end = max([first.end(), *(found.end() for found in self._control.finditer(piece))])
        return first.start(), len(piece) if last else end

    def _count(self, text: str) -> int:
        return len(self._control.findall(text))

    def _alone(self, conversation: Conversation, number: int, text: str) -> _Words:
        """Where one reply's words are: between what does not change when the reply does."""
        messages, field = conversation.messages, conversation.field(number)
        base = mark_not_in(text)
        probe = self.render(
            [*messages[:number], stand_in(messages[number], number, base), *messages[number + 1 :]], conversation.tools
        )
        marks = find_marks(probe, base)
        contents = sum(mark.kind == CONTENT for mark in marks)
        if contents != (not blank(messages[number].content)):
            raise ConversationRefused(field, f"the chat template writes this reply {contents} times")
        if lacking := _lacks(messages[number], marks):
            raise ConversationRefused(turn(conversation, number), lacking)
        head, tail = probe[: marks[0].start], probe[marks[-1].end :]
        exact = marks[-1].kind == CONTENT
        start, behind = common_start(head, text), common_end(tail, text)
        changed = tail[: len(tail) - behind]
        if (changed and exact) or self._count(changed) or start > len(text) - behind:
            raise ConversationRefused(field, DEPENDS)
        return _Words(start, len(text) - behind, marks[0].kind == CONTENT, exact)

    def _span(self, conversation: Conversation, number: int, text: str, words: _Words) -> Span:
        message, field = conversation.messages[number], conversation.field(number)
        start = self._start(conversation, number, text, words)
        if start is None:
            raise ConversationRefused(field, NO_PROMPT)
        # What follows words other than the content is of the turn up to its first control token.
        closed = self._closed.match(text, words.end) if words.content_last else self._control.search(text, words.end)
        if closed is None or not self._closes(closed.group(), conversation, number, words.content_last):
            raise ConversationRefused(field, NOT_CLOSED)
        # It may close the call alone: what ends all turns may follow.
        ends: re.Match[str] | None = closed
        while not words.content_last and ends is not None:
            if ends.group().strip() == self._end_of_turn:
                closed = ends
                break
            ends = self._closed.match(text, ends.end())
        said = squashed(text[start : closed.end()])
        content = message.content.strip()
        if THINK.search(text[:start].rstrip()[-len("<think>") :]):
            content = content.removeprefix("<think>")  # the generation prompt has it
        if squashed(content) not in said:
            reasoned = "</think>" in content and squashed(content.rpartition("</think>")[2]) in said
            raise ConversationRefused(field, LEAVES_OUT_THINKING if reasoned else LEAVES_OUT_A_PART)
        if squashed(message.thinking) not in said:
            raise ConversationRefused(turn(conversation, number), LEAVES_OUT_THINKING)
        if not shows_calls(said, message):
            raise ConversationRefused(f"{turn(conversation, number)}.tool_calls", LEAVES_OUT_CALLS)
        return Span(start, closed.end(), text[start : closed.end()], field)

    def _closes(self, token: str, conversation: Conversation, number: int, content_last: bool) -> bool:
        """Whether ``token`` ends a turn, rather than begins the next: a reply that comes last must have one too."""
        if (token, content_last) not in self._closing:
            before, reply = conversation.messages[:number], conversation.messages[number]
            shape = Message("assistant", MARK) if content_last else reply
            last = self.attempt([*before, stand_in(shape, number)], conversation.tools)
            marks = find_marks(last) if last is not None else []
            if last is None or not marks:
                return False
            ends = (self._closed.match if content_last else self._control.search)(last, marks[-1].end)
            if ends is None:
                return False
            self._closing.add((token, content_last))
        return True

    @cached_property
    def _end_of_turn(self) -> str:
        """The control token right behind a plain reply; empty when there is none."""
        last = self.attempt([Message("user", MARK), Message("assistant", f"{MARK}z")], "") or ""
        found = self._closed.match(last, last.rfind(f"{MARK}z") + len(MARK) + 1)
        return found.group().strip() if found else ""

    def _start(self, conversation: Conversation, number: int, text: str, words: _Words) -> int | None:
        """Where the model would begin to write, in ``text``; None when the renderings do not agree on it."""
        first = words.start
        prompt = self._generation_prompt(conversation.tools)
        if prompt and text.endswith(prompt, 0, first):
            return first
        prefix = self.attempt(conversation.messages[:number], conversation.tools, prompt=True)
        if prefix is not None:
            # A reply may begin with the thinking mark that the prompt ends with.
            over = len(prefix) - first
            if text.startswith(prefix) and (over <= 0 or self._filler.fullmatch(text, first, len(prefix))):
                return len(prefix)
            # The prompt and this turn differ in thinking marks alone.
            at = common_start(prefix, text[:first])
            at -= len(re.search(r"(<[^<>]*)?$", text[:at]).group())  # type: ignore[union-attr]
            if self._opens(text, at, words) and self._filler.fullmatch(prefix, at):
                return at
        # An earlier turn renders differently when the conversation ends after it; the prompt stands before this one.
        for opening in (prompt, THINK.split(prompt)[0]):
            at = text.rfind(opening, 0, first) if opening else -1
            if at >= 0 and self._opens(text, at + len(opening), words):
                return at + len(opening)
        return None

    def _opens(self, text: str, at: int, words: _Words) -> bool:
        """Whether what stands between a place and a reply's words is of the reply."""
        if words.content_first:
            return self._filler.fullmatch(text, at, words.start) is not None
        return self._control.search(text, at, words.start) is None

    def _generation_prompt(self, tools: str) -> str:
        """What the template adds for the model to go on; empty when it adds nothing or that cannot be told."""
        found = self._prompts.get(bool(tools))
        if found is None:
            ask = [Message("user", MARK)]
            with_prompt, without = self.attempt(ask, tools, prompt=True), self.attempt(ask, tools)
            found = ""
            if with_prompt is not None and without is not None:
                atoms = self._atoms(with_prompt.rpartition(MARK)[2])
                found = "".join(atoms[shared(atoms, self._atoms(without.rpartition(MARK)[2])) :])
            self._prompts[bool(tools)] = found
        return found

    def _atoms(self, text: str) -> list[str]:
        """``text`` split at added tokens, which are kept."""
        parts: list[str] = []
        at = 0
        for found in self._closers.finditer(text):
            parts += [text[at : found.start()], found.group()]
            at = found.end()
        return [part for part in (*parts, text[at:]) if part]

    def injects_words(self) -> bool:
        """Whether the template puts words before a conversation that has no system message."""
        marks = [f"{MARK}{number}x" for number in range(3)]
        roles = ("user", "assistant", "user")
        probe = self.attempt([Message(role, mark) for role, mark in zip(roles, marks, strict=True)], "")
        pieces = [] if probe is None else re.split("|".join(marks), probe)
        if len(pieces) != 4:
            return False
        first, again = (self._closers.sub("\0", piece) for piece in (pieces[0], pieces[2]))
        header = shared(first[::-1], again[::-1])
        words = re.findall(r"\w+", first[: len(first) - header])
        return any(word not in ("system", "user") for word in words)


def _runs(marks: Sequence[Found]) -> list[tuple[int, list[Found]]]:
    """Marks that follow each other and are of one message."""
    runs: list[tuple[int, list[Found]]] = []
    for mark in marks:
        if not runs or runs[-1][0] != mark.number:
            runs.append((mark.number, []))
        runs[-1][1].append(mark)
    return runs


def _lacks(message: Message, marks: Sequence[Found]) -> str | None:
    """The reason to refuse a turn of which a rendering does not have all marks."""
    kinds = [mark.kind for mark in marks]
    if kinds.count(CONTENT) != (not blank(message.content)):
        return LEAVES_OUT_A_PART
    if len({mark.call for mark in marks if mark.kind == KEY}) < len(message.calls):
        return LEAVES_OUT_CALLS
    return LEAVES_OUT_THINKING if not blank(message.thinking) and THINKING not in kinds else None
