"""From one text of an example to ids and labels: what is text, what is supervised, what is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepctl.traces.chat import ChatPlacer, Span, squashed
from stepctl.traces.rows import Tokens
from stepctl.traces.shapes import Completion, Conversation, Single
from stepctl.traces.tokenizer import Encoded, TextTokenizer

IGNORED = -100


@dataclass(frozen=True)
class Prepared:
    """A text. ``chat``: the template wrote BOS and end-of-turn tokens, so none is added.

    ``seam`` is where the completion begins. ``injected``: the template put a system text in.
    """

    text: str
    spans: tuple[Span, ...]
    chat: bool
    seam: int | None = None
    injected: bool = False


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
        seam = spans[0].start if example.prompt else None
        return Prepared(placed.text, spans, chat=True, seam=seam, injected=placed.injected)
    if isinstance(example, Completion):
        text, seam = example.prompt + example.completion, len(example.prompt)
        if everything:
            return Prepared(text, (_whole(text, example.column),), chat=False)
        return Prepared(text, (Span(seam, len(text), example.completion, example.column),), chat=False, seam=seam)
    return Prepared(example.text, (_whole(example.text, "text"),), chat=False)


def _whole(text: str, field: str) -> Span:
    return Span(0, len(text), "", field)


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
    ids, offsets = list(encoded.ids), list(encoded.offsets)
    labels = [IGNORED] * len(ids)
    for span in prepared.spans:
        inside = [i for i, (start, end) in enumerate(offsets) if start < span.end and end > span.start]
        if squashed(span.content) not in squashed(tokenizer.decode([ids[i] for i in inside])):
            raise RowRefused(span.field, "holds characters that the model's tokens cannot write")
        for i in inside:
            labels[i] = ids[i]
    seam = prepared.seam
    crosses = seam is not None and any(start < seam < end for start, end in offsets)
    if not prepared.chat:
        _end_with_eos(prepared.text, ids, labels, encoded.added, tokenizer)
    bare = labels[:1] != [IGNORED]
    labels[:1] = [IGNORED] * len(labels[:1])
    if all(label == IGNORED for label in labels):
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
    lost = sum(label != IGNORED for label in masked.labels[max_length:])
    if lost and all(label == IGNORED for label in labels):
        raise no_room(masked.first, len(masked.ids), max_length)
    return Tokens(input_ids=masked.ids[:max_length], labels=labels), lost


def no_room(prompt: int, tokens: int, max_length: int) -> RowRefused:
    """The refusal of a row whose completion is cut whole; ``prompt`` and ``tokens`` (all) are counts."""
    reason = (
        f"its {prompt} prompt tokens leave no room: raise max_length ({max_length}); the whole row has {tokens} tokens"
    )
    return RowRefused(None, reason)
