"""From an example to the row of its method: its texts, and what becomes of them once they are tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from stepctl.traces.formats.values import RawRow
from stepctl.traces.render.chat import ChatPlacer
from stepctl.traces.render.mask import IGNORED, Masked, Prepared, RowRefused, cut, no_room, prepare
from stepctl.traces.rows import DpoRow, KtoRow, Row, SftRow
from stepctl.traces.shapes.examples import Example, Feedback, Pair, Single, shared

_BARE = (
    "the prompt and the beginning of a completion are one token, the first: nothing stands before it to predict it; "
    "make the prompt longer"
)


class Assembled(NamedTuple):
    """A row, cut. ``crosses_seam``: supervision does not begin where the completion does; see :class:`Masked`."""

    row: Row
    crosses_seam: bool


def singles(example: Example) -> tuple[Single, ...]:
    """The texts of an example, each an example of its own."""
    if isinstance(example, Pair):
        return (example.chosen, example.rejected)
    return (example.answered,) if isinstance(example, Feedback) else (example,)


def prepare_all(example: Example, placer: ChatPlacer, *, everything: bool) -> tuple[Prepared, ...]:
    """:func:`prepare` for each text of an example.

    Raises:
        ConversationRefused, UsageError: as :func:`prepare`.
        RowRefused: the two sides of a pair do not have the same prompt.
    """
    texts = tuple(prepare(single, placer, everything=everything) for single in singles(example))
    if isinstance(example, Pair):
        # Thinking marks alone may make one side begin earlier than the other: they are of the completion.
        start = min(text.spans[0].start for text in texts)
        if len({text.text[:start] for text in texts}) > 1:
            raise RowRefused(None, "the chat template writes the prompt differently before `chosen` and `rejected`")
    return texts


def assemble(raw: RawRow, example: Example, masked: Sequence[Masked], max_length: int) -> Assembled:
    """Make the row of an example from its texts' tokens.

    Raises:
        RowRefused: nothing is left to learn from it within ``max_length``, or a prompt is too short for its tokens.
    """
    if isinstance(example, Pair):
        return _pair(raw, masked[0], masked[1], max_length)
    (one,) = masked
    if isinstance(example, Feedback):
        tail = _as_tail(one)
        tokens, lost = cut(tail, max_length)
        return Assembled(
            KtoRow(
                file=raw.file,
                line=raw.line,
                input_ids=tokens.input_ids,
                labels=tokens.labels,
                desirable=example.desirable,
                cut=lost,
                rest=tail.ids[max_length:],
            ),
            one.crosses_seam,
        )
    if one.bare and one.crosses_seam:
        raise RowRefused(None, _BARE)
    tokens, lost = cut(one, max_length)
    row = SftRow(file=raw.file, line=raw.line, input_ids=tokens.input_ids, labels=tokens.labels, cut=lost)
    return Assembled(row, one.crosses_seam)


def _pair(raw: RawRow, chosen: Masked, rejected: Masked, max_length: int) -> Assembled:
    """Both sides are supervised from the same token on, so that they answer the same prompt."""
    start = min(chosen.first, rejected.first, shared(chosen.ids, rejected.ids))
    if chosen.bare or rejected.bare or start == 0:
        raise RowRefused(None, _BARE)
    if start >= max_length:
        raise no_room(start, max(len(chosen.ids), len(rejected.ids)), max_length)
    crosses = chosen.crosses_seam or rejected.crosses_seam or start < max(chosen.first, rejected.first)
    chosen, rejected = _from(start, chosen), _from(start, rejected)
    if _trained(chosen.ids, chosen.labels) == _trained(rejected.ids, rejected.labels):
        raise RowRefused(None, "`chosen` and `rejected` are the same to the model: they become the same tokens")
    (better, lost), (worse, lost_too) = cut(chosen, max_length), cut(rejected, max_length)
    if _trained(better.input_ids, better.labels) == _trained(worse.input_ids, worse.labels):
        reason = f"`chosen` and `rejected` are the same once they are cut: raise max_length ({max_length})"
        raise RowRefused(None, reason)
    row = DpoRow(file=raw.file, line=raw.line, chosen=better, rejected=worse, cut=lost + lost_too)
    return Assembled(row, crosses)


def _from(start: int, masked: Masked) -> Masked:
    """Supervised from ``start`` on, where tokens between prompt and completion differ from the other side's."""
    labels = masked.labels[:start] + masked.ids[start : masked.first] + masked.labels[masked.first :]
    return replace(masked, labels=labels)


def _trained(ids: Sequence[int], labels: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """What bears on the loss: nothing that comes after the last supervised token does."""
    end = end_of(labels)
    return ids[:end], labels[:end]


def end_of(labels: Sequence[int]) -> int:
    """Number of tokens up to the last supervised one: what comes after it does not bear on the loss."""
    return len(labels) - next(i for i, label in enumerate(reversed(labels)) if label != IGNORED)


def _as_tail(masked: Masked) -> Masked:
    """The prompt, then the completion and nothing else: it is set behind other prompts, and they before others."""
    if masked.bare:
        raise RowRefused(None, _BARE)
    end = end_of(masked.labels)
    if IGNORED in masked.labels[masked.first : end]:
        raise RowRefused(None, "the model's tokens do not keep the completion in one piece")
    return replace(masked, ids=masked.ids[:end], labels=masked.labels[:end])
