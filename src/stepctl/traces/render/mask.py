"""From one text of an example to ids and labels: what is text, what is supervised, what is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepctl.traces.render.chat import ChatPlacer, Span
from stepctl.traces.render.encoded import Encoded, squashed
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import Tokens
from stepctl.traces.shapes.examples import Completion, Conversation, Single

IGNORED = -100
CANNOT_READ = (
    "spells the control token {token}: this tokenizer cannot read it as text; "
    "take it out, or set train.parse_special_tokens = true"
)


@dataclass(frozen=True)
class Prepared:
    """A text. ``chat``: the template wrote BOS and end-of-turn tokens, so none is added.

    ``seam`` is where the completion begins. ``injected``: the template put a system text in; ``dated``: it wrote
    today's date or the time. ``spelled``: how many control tokens the row spells, which are text; ``encoded`` has the
    tokens then.
    """

    text: str
    spans: tuple[Span, ...]
    chat: bool
    seam: int | None = None
    injected: bool = False
    dated: bool = False
    spelled: int = 0
    encoded: Encoded | None = field(default=None, repr=False)


class RowRefused(Exception):
    """A row cannot be trained; ``reason`` has no text of it."""

    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


def prepare(example: Single, placer: ChatPlacer, *, everything: bool) -> Prepared:
    """The text of an example and its supervised characters; ``everything`` supervises all.

    Raises:
        ConversationRefused: see :meth:`ChatPlacer.place`.
        UsageError: the chat template is no valid Jinja.
    """
    if isinstance(example, Conversation):
        placed = placer.place(example, supervise=not everything)
        spans = (_whole(placed.text, example.column),) if everything else placed.spans
        return Prepared(
            placed.text,
            spans,
            chat=True,
            seam=spans[0].start if example.prompt and spans else None,
            injected=placed.injected,
            dated=placed.dated,
            spelled=len(placed.spelled),
            encoded=placed.encoded,
        )
    if isinstance(example, Completion):
        text, seam = example.prompt + example.completion, len(example.prompt)
        if everything:
            return _plain(text, _whole(text, example.column), None, placer)
        return _plain(text, Span(seam, len(text), example.completion, example.column), seam, placer)
    return _plain(example.text, _whole(example.text, "text"), None, placer)


def _plain(text: str, span: Span, seam: int | None, placer: ChatPlacer) -> Prepared:
    spelled = placer.spelled_in(text)
    if not spelled:
        return Prepared(text, (span,), chat=False, seam=seam)
    encoded = placer.tokenizer.encode_spelled(text, spelled, True)
    if encoded is None:
        token = text[slice(*spelled[0])]
        raise RowRefused(span.field, CANNOT_READ.format(token=token))
    return Prepared(text, (span,), chat=False, seam=seam, spelled=len(spelled), encoded=encoded)


def _whole(text: str, column: str) -> Span:
    return Span(0, len(text), "", column)


def encode(texts: Sequence[Prepared], tokenizer: TextTokenizer) -> list[Encoded]:
    """The tokens of texts, those of chats and of others each in one batch."""
    encoded: dict[int, Encoded] = {i: text.encoded for i, text in enumerate(texts) if text.encoded is not None}
    for chat in (True, False):
        places = [i for i, text in enumerate(texts) if text.chat is chat and text.encoded is None]
        batch = tokenizer.encode_batch([texts[i].text for i in places], add_special_tokens=not chat)
        encoded |= zip(places, batch, strict=True)
    return [encoded[i] for i in range(len(texts))]


@dataclass(frozen=True)
class Masked:
    """A text as tokens, whole.

    ``crosses_seam``: a token holds the end of the prompt and the beginning of the completion. ``bare``: the first token
    holds supervised text, and nothing stands before it to predict it.
    """

    ids: list[int]
    labels: list[int]
    crosses_seam: bool
    bare: bool

    @property
    def first(self) -> int:
        """Number of the first supervised token."""
        return next(i for i, label in enumerate(self.labels) if label != IGNORED)


def mask(prepared: Prepared, encoded: Encoded, tokenizer: TextTokenizer) -> Masked:
    """Label the tokens that overlap a span, and end a text that is no chat with exactly one EOS, labelled.

    Raises:
        RowRefused: nothing is supervised, or a reply is not in the text of its labelled tokens.
    """
    ids = list(encoded.ids)
    labels = [IGNORED] * len(ids)
    for span in prepared.spans:
        first, last = encoded.inside(span.start, span.end)
        if not encoded.exact and squashed(span.content) not in squashed(tokenizer.decode(ids[first:last])):
            raise RowRefused(span.field, "holds characters that the model's tokens cannot write")
        labels[first:last] = ids[first:last]
    crosses = prepared.seam is not None and encoded.splits(prepared.seam)
    if not prepared.chat:
        _end_with_eos(prepared.text, ids, labels, encoded.added, tokenizer)
    bare = labels[:1] != [IGNORED]
    labels[:1] = [IGNORED] * len(labels[:1])
    if labels.count(IGNORED) == len(labels):
        raise RowRefused(None, "nothing in it is supervised")
    return Masked(ids, labels, crosses, bare)


def _end_with_eos(text: str, ids: list[int], labels: list[int], added: Sequence[int], tokenizer: TextTokenizer) -> None:
    """Drop what the post-processor put after the text, and a BOS that the text has already; add the EOS if missing."""
    flags = list(added)
    while flags and flags[-1]:
        for column in (ids, labels, flags):
            column.pop()
    if len(flags) > 1 and flags[0] and not flags[1] and ids[0] == ids[1] == tokenizer.bos_id:
        del ids[0], labels[0]
    if not text.rstrip().endswith(tokenizer.eos_token):
        ids.append(tokenizer.eos_id)
        labels.append(tokenizer.eos_id)


def cut(masked: Masked, max_length: int) -> tuple[Tokens, int]:
    """Keep the first ``max_length`` tokens; also tells how many supervised ones are lost.

    Raises:
        RowRefused: no supervised token is left.
    """
    labels = masked.labels[:max_length]
    beyond = masked.labels[max_length:]
    lost = len(beyond) - beyond.count(IGNORED)
    if lost and labels.count(IGNORED) == len(labels):
        raise no_room(masked.first, len(masked.ids), max_length)
    return Tokens(input_ids=masked.ids[:max_length], labels=labels), lost


def no_room(prompt: int, tokens: int, max_length: int) -> RowRefused:
    """The refusal of a row whose completion is cut whole; ``prompt`` and ``tokens`` (all) are counts."""
    reason = (
        f"its {prompt} prompt tokens leave no room: raise max_length ({max_length}); the whole row has {tokens} tokens"
    )
    return RowRefused(None, reason)
