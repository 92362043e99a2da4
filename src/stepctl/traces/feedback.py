"""The shapes of a row for KTO.

A row has ``prompt`` + ``completion``, or ``messages`` of which the last turn is the completion; and ``label`` or
``desirable``. The completion is one reply, since the trainer sets it behind the prompts of other rows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepctl.traces.prompted import has_words, prompted
from stepctl.traces.read import kind
from stepctl.traces.shapes import (
    Completion,
    Conversation,
    Feedback,
    Flaw,
    Shaped,
    foreign,
    given,
    pick,
    turns,
)

SHAPES = "`prompt` and `completion`, or `messages`"
LABELS = ("label", "desirable")
_SHAPE_COLUMNS = {"messages": "messages", "prompt": "prompt", "completion": "prompt"}
_OTHERS = {"chosen": "DPO preferences", "rejected": "DPO preferences", "text": "SFT rows", "labels": "labels"}
_WHOLE = "use `messages` for a whole conversation"
_VALUES = "true, false, 1 or 0"


def shape(row: dict[str, Any]) -> Shaped:
    """Take a row as one completion with its label."""
    if flaws := foreign(row, _OTHERS, "KTO"):
        return Shaped(None, flaws, [])
    picked = pick(row, _SHAPE_COLUMNS, SHAPES)
    if isinstance(picked, Shaped):
        return picked
    ignored = [key for key in given(row) if key not in (*_SHAPE_COLUMNS, *LABELS)]
    answered, flaws, unused = _conversation(row) if picked == "messages" else _completion(row)
    ignored += unused
    label = _label(row, flaws)
    if flaws or answered is None or label is None:
        return Shaped(None, flaws, ignored)
    return Shaped(Feedback(answered, label), [], ignored)


_Answered = tuple[Conversation | Completion | None, list[Flaw], list[str]]


def _completion(row: Mapping[str, Any]) -> _Answered:
    answered, flaws, ignored = prompted(row, ["completion"], whole=_WHOLE)
    if flaws:
        return None, flaws, ignored
    (one,) = answered
    if isinstance(one, Conversation) and len(one.messages) > one.prompt + 1:
        count = len(one.messages) - one.prompt
        reason = f"has {count} messages, not one assistant turn: what comes before the last belongs to `prompt`"
        return None, [Flaw("completion", reason)], ignored
    return one, [], ignored


def _conversation(row: Mapping[str, Any]) -> _Answered:
    messages, flaws, ignored = turns("messages", row["messages"])
    if flaws:
        return None, flaws, ignored
    if (role := messages[-1].role) != "assistant":
        flaws.append(Flaw("messages", f"ends with a {role} turn: the last turn is what the label is about"))
    elif not has_words(messages[:-1]):
        flaws.append(Flaw("messages", "has no prompt before its last turn"))
    return Conversation(messages, len(messages) - 1), flaws, ignored


def _label(row: Mapping[str, Any], flaws: list[Flaw]) -> bool | None:
    """The label under either name; None, and a flaw more, when there is none that can be relied on."""
    names = [name for name in LABELS if row.get(name) is not None] or [name for name in LABELS if name in row]
    if not names:
        flaws.append(Flaw("label", f"is missing; it is {_VALUES}, and may be called `desirable`"))
        return None
    wrong = [Flaw(name, reason) for name in names if (reason := _label_flaw(row[name]))]
    if not wrong and len({bool(row[name]) for name in names}) > 1:
        wrong = [Flaw("label", "`label` and `desirable` contradict each other")]
    flaws += wrong
    return None if wrong else bool(row[names[0]])


def _label_flaw(value: Any) -> str | None:
    """Why a value is no label. Texts are never read as one: the string "false" is true to many a program."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return None
    if isinstance(value, int | float):
        return f"is a number that is none of {_VALUES}"
    return f"is {kind(value)}, not {_VALUES}"
