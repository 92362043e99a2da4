"""Where the assistant's words are in a rendered conversation.

Nothing is guessed from markers. A rendering of stand-ins shows once for each make of conversation where the words go,
where the model would begin to write, and that the reply's end-of-turn token is its own; a conversation that comes out
as those pieces with its words between them is placed by it. All others are compared with renderings of their own. A
conversation for which these do not agree is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from stepctl.traces.render.encoded import Encoded
from stepctl.traces.render.kept import learned, left_out
from stepctl.traces.render.place import Places, Span
from stepctl.traces.render.probe import Skeleton, blank, find_marks, stand_in, whole_arguments
from stepctl.traces.render.refusal import ConversationRefused
from stepctl.traces.render.spelled import Spelled, control_tokens, put_back
from stepctl.traces.render.template import RenderRefused
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.shapes.examples import Conversation, Message

__all__ = ["ChatPlacer", "ConversationRefused", "Placed", "Span"]

_MAKES = 4096
"""Makes of conversations that are remembered: calls have ids, so that there may be one for each row."""

_MAKES_CHARACTERS = 1 << 24
"""What they may hold in all, about."""


@dataclass(frozen=True)
class Placed:
    """A rendered conversation.

    ``injected`` when the template put a system text there that no message has, ``dated`` when it wrote today's date or
    the time. ``spelled`` are the stretches that spell a control token and are text; ``encoded`` has the tokens then.
    """

    text: str
    spans: tuple[Span, ...]
    injected: bool
    dated: bool = False
    spelled: tuple[tuple[int, int], ...] = ()
    encoded: Encoded | None = None


class _Make(NamedTuple):
    """What holds for all conversations of one make: their roles, tools and which words they have."""

    skeleton: Skeleton | None
    left_out: tuple[str, str] | None
    injected: bool
    dated: bool


class ChatPlacer:
    """Places conversations with one tokenizer; remembers what depends on their make alone.

    Args:
        tokenizer: of the model that is trained.
        parse_special: read control tokens that a row's texts spell as control tokens, instead of as text.
    """

    def __init__(self, tokenizer: TextTokenizer, *, parse_special: bool = False) -> None:
        self.tokenizer, self.parse_special = tokenizer, parse_special
        self._places = Places(tokenizer)
        self._control = control_tokens(tokenizer)
        self._makes: dict[object, _Make] = {}
        self._held = 0
        self._injects: bool | None = None

    def place(self, conversation: Conversation, *, supervise: bool = True) -> Placed:
        """Render a conversation and find the spans of its supervised turns (none when not ``supervise``).

        Raises:
            ConversationRefused: the template refuses it, leaves a part out, or its replies cannot be found exactly.
            UsageError: the template is no valid Jinja.
        """
        try:
            if not self.parse_special and (spelled := Spelled.of(conversation, self._control)):
                return self._place_spelled(conversation, spelled, supervise)
            return self._place(conversation, supervise)
        except RenderRefused as error:
            raise ConversationRefused(conversation.column, error.reason) from None

    def spelled_in(self, text: str) -> tuple[tuple[int, int], ...]:
        """Where a text that is no chat spells control tokens; its first BOS and last end-of-text token are such."""
        if self.parse_special:
            return ()
        bos, eos, end = self.tokenizer.bos_token, self.tokenizer.eos_token, len(text.rstrip())
        places = [found.span() for found in self._control.finditer(text)]
        if places and bos and places[0] == (0, len(bos)) and text.startswith(bos):
            del places[0]
        if places and places[-1] == (end - len(eos), end) and text.startswith(eos, end - len(eos)):
            del places[-1]
        return tuple(places)

    def _place(self, conversation: Conversation, supervise: bool) -> Placed:
        messages = conversation.messages
        text = self._places.render(messages, conversation.tools)
        make = self._make(conversation, supervise)
        spans = None if make.skeleton is None else self._fit(conversation, text, make.skeleton)
        if spans is None:
            if make.left_out is not None:
                raise ConversationRefused(*make.left_out)
            self._places.check_kept(conversation, text, supervise)
            spans = self._places.spans(conversation, text) if supervise else ()
        return Placed(text, spans, make.injected, make.dated)

    def _fit(self, conversation: Conversation, text: str, skeleton: Skeleton) -> tuple[Span, ...] | None:
        messages = conversation.messages
        for message in messages:
            # A reply that has thinking marks of its own may begin in the generation prompt's.
            if message.role == "assistant" and "think>" in message.content:
                return None
        found = skeleton.fit(messages, text)
        if found is None:
            return None
        return tuple(Span(start, end, text[start:end], conversation.field(number)) for number, start, end in found)

    def _make(self, conversation: Conversation, supervise: bool) -> _Make:
        key = (tuple(map(_make_of, conversation.messages)), conversation.prompt, conversation.tools, supervise)
        made = self._makes.get(key)
        if made is None:
            if len(self._makes) >= _MAKES or self._held > _MAKES_CHARACTERS:
                self._makes.clear()
                self._held = 0
            made = self._makes[key] = self._probe(conversation, supervise)
            # The tools are in the key, and in what the template made of them.
            self._held += 3 * len(conversation.tools) + 200 * len(conversation.messages)
        return made

    def _probe(self, conversation: Conversation, supervise: bool) -> _Make:
        tools = conversation.tools
        messages = tuple(stand_in(message, number) for number, message in enumerate(conversation.messages))
        probe = replace(conversation, messages=messages)
        text = self._places.attempt(messages, tools)
        no_system = not any(message.role in ("system", "developer") for message in messages)
        injected = no_system and self._injects_system()
        dated = self.tokenizer.writes_the_time([message.data() for message in messages], tools)
        if text is None:
            return _Make(None, None, injected, dated)
        marks = find_marks(text)
        without = self._places.attempt(messages, "") if tools else None
        lost = left_out(conversation, text, marks, without, supervise)
        whole = None if lost else whole_arguments(text, marks)
        if whole is None:
            return _Make(None, lost, injected, dated)
        try:
            spans = self._places.spans(probe, text) if supervise else ()
        except (ConversationRefused, RenderRefused):
            return _Make(None, None, injected, dated)
        numbers = learned(probe) if supervise else []
        ends = [(number, span.start, span.end) for number, span in zip(numbers, spans, strict=True)]
        return _Make(Skeleton(text, whole, ends), None, injected, dated)

    def _place_spelled(self, conversation: Conversation, spelled: Spelled, supervise: bool) -> Placed:
        """Place a conversation whose control tokens are replaced by plain words, then put them back as text."""
        placed = self._place(spelled.hidden, supervise)
        text, moved = put_back(placed.text, spelled.tokens)
        if self._places.render(conversation.messages, conversation.tools) != text:
            raise ConversationRefused(spelled.field, spelled.reason("the chat template does not keep it as it is"))
        encoded = self.tokenizer.encode_spelled(text, moved.tokens, False)
        if encoded is None:
            raise ConversationRefused(spelled.field, spelled.reason("this tokenizer cannot read it as text"))
        spans = []
        for span in placed.spans:
            start, end = moved.place(span.start), moved.place(span.end)
            spans.append(Span(start, end, text[start:end], span.field))
        return replace(placed, text=text, spans=tuple(spans), spelled=moved.tokens, encoded=encoded)

    def _injects_system(self) -> bool:
        """Whether the template puts words before a conversation that has no system message."""
        if self._injects is None:
            self._injects = self._places.injects_words()
        return self._injects


def _make_of(message: Message) -> object:
    """What of a message bears on how others like it are rendered."""
    role, content, thinking, calls, name, call_id, supervised = message
    if supervised and not calls and not thinking and name is None and call_id is None and not blank(content):
        return role
    named = tuple((call.name, call.id) for call in calls)
    return (role, content if blank(content) else None, not blank(thinking), named, name, call_id, supervised)
