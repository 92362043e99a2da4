"""The shapes of a row for KTO.

A row has ``prompt`` + ``completion``, ``messages`` or ``conversations`` of which the last turn is the completion, or
Alpaca's columns; and ``label`` or ``desirable``. The completion is one reply, since the trainer sets it behind the
prompts of other rows too.

A label is a boolean, 0 or 1 (0.0 or 1.0 too), or one of these words, exactly, in capitals or not:

- desirable: ``true``, ``1``, ``yes``, ``desirable``, ``good``, ``thumbs_up``, ``👍``
- undesirable: ``false``, ``0``, ``no``, ``undesirable``, ``bad``, ``thumbs_down``, ``👎``

Nothing else is read: not -1 (a score?), not "y" or "t", not "up", "like" or "chosen", not a word among spaces. Whether
a text is empty never decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepctl.traces.formats.values import kind
from stepctl.traces.methods.sft import SHAPE_COLUMNS, alpaca, completion, conversation
from stepctl.traces.shapes.columns import (
    ALPACA,
    MESSAGES,
    SHAREGPT,
    TEXT,
    Found,
    foreign,
    kind_of,
    pick,
    refuse_changes,
)
from stepctl.traces.shapes.examples import Completion, Conversation, Feedback, Shaped, Thinking, unmuted
from stepctl.traces.shapes.messages import weights
from stepctl.traces.shapes.prompted import has_words

SHAPES = "`prompt` and `completion`, `messages`, `conversations`, or `instruction` and `output`"
LABELS = ("label", "desirable")
WORDS = {
    **dict.fromkeys(("true", "1", "yes", "desirable", "good", "thumbs_up", "👍"), True),
    **dict.fromkeys(("false", "0", "no", "undesirable", "bad", "thumbs_down", "👎"), False),
}
"""Texts that are read as a label, in lower case."""

_SHAPE_COLUMNS = {column: name for column, name in SHAPE_COLUMNS.items() if name != TEXT}
_OTHERS = {
    "chosen": "DPO preferences",
    "rejected": "DPO preferences",
    "preferred_output": "DPO preferences",
    "non_preferred_output": "DPO preferences",
    "text": "SFT rows",
    "labels": "labels",
}
_WHOLE = "use `messages` for a whole conversation"
_VALUES = "true, false, 1 or 0"


def shape(row: dict[str, Any], *, thinking: Thinking = "keep") -> Shaped:
    """Take a row as one completion with its label."""
    found = Found(thinking)
    if foreign(row, _OTHERS, "KTO", found) or (picked := pick(row, _SHAPE_COLUMNS, SHAPES, found)) is None:
        return found.shaped(None, kind_of(row))
    refuse_changes(row, found)
    bare = {key: value for key, value in row.items() if key not in LABELS}
    answered: Conversation | Completion | None
    if picked in (MESSAGES, SHAREGPT):
        answered = _last_turn(conversation(bare, found), found)
    elif picked == ALPACA:
        answered = alpaca(bare, found)
    else:
        answered = _one_reply(completion(bare, found, _WHOLE), found)
    if isinstance(answered, Conversation):
        if not found.flaws:
            weights(answered.column, answered, found)
        answered = replace(answered, messages=unmuted(answered.messages))
    label = _label(row, found)
    return found.shaped(None if answered is None or label is None else Feedback(answered, label), picked)


def _one_reply(one: Conversation | Completion | None, found: Found) -> Conversation | Completion | None:
    if isinstance(one, Conversation) and len(one.messages) > one.prompt + 1:
        count = len(one.messages) - one.prompt
        reason = f"has {count} messages, not one assistant turn: what comes before the last belongs to `prompt`"
        found.flaw("completion", reason)
    return one


def _last_turn(whole: Conversation | None, found: Found) -> Conversation | None:
    if whole is None:
        return None
    messages = whole.messages
    if (role := messages[-1].role) != "assistant":
        found.flaw(whole.column, f"ends with a {role} turn: the last turn is what the label is about")
    elif not has_words(messages[:-1]):
        found.flaw(whole.column, "has no prompt before its last turn: write what the model is asked")
    return replace(whole, prompt=len(messages) - 1)


def _label(row: Mapping[str, Any], found: Found) -> bool | None:
    """The label under either name; None, and a flaw more, when there is none that can be relied on."""
    names = [name for name in LABELS if row.get(name) is not None] or [name for name in LABELS if name in row]
    if not names:
        found.flaw("label", f"is missing; it is {_VALUES}, and may be called `desirable`")
        return None
    values = [_value(name, row[name], found) for name in names]
    if True in values and False in values:
        found.flaw("label", "`label` and `desirable` contradict each other: keep the one that holds")
    return values[0]


def _value(name: str, value: Any, found: Found) -> bool | None:
    """What a value means. Truth is never taken from whether there is a text: "false" is not empty."""
    if isinstance(value, str):
        if (meant := WORDS.get(value.lower())) is None:
            found.flaw(name, f"is a string that is not read as a label: write {_VALUES}")
        return meant
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    number = isinstance(value, int | float)
    found.flaw(name, f"is a number that is none of {_VALUES}" if number else f"is {kind(value)}, not {_VALUES}")
    return None
