"""The shapes of a row for DPO.

A row has ``chosen`` and ``rejected``, and ``prompt``. It may lack the prompt where both sides are lists of messages:
the whole messages that they begin with in common are it. A text is never split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepctl.traces.prompted import prompted
from stepctl.traces.read import kind
from stepctl.traces.shapes import Conversation, Flaw, Message, Pair, Shaped, foreign, given, no_shape, shared, turns

SIDES = ("chosen", "rejected")
SHAPES = "`prompt`, `chosen` and `rejected`"
_COLUMNS = ("prompt", *SIDES)
_OTHERS = {
    "messages": "SFT and KTO rows",
    "completion": "SFT and KTO rows",
    "text": "SFT rows",
    "label": "KTO labels",
    "desirable": "KTO labels",
    "labels": "labels",
}
_NO_PROMPT = "; only lists of messages can do without, since a text is never split"
_WHOLE = "leave `prompt` out where both sides are whole conversations"
_SAME = "`chosen` and `rejected` are the same: there is nothing to prefer"


def shape(row: dict[str, Any]) -> Shaped:
    """Take a row as a pair."""
    if flaws := foreign(row, _OTHERS, "DPO") or _mixed(row):
        return Shaped(None, flaws, [])
    if not any(column in row for column in _COLUMNS):
        return no_shape(row, SHAPES)
    ignored = [key for key in given(row) if key not in _COLUMNS]
    if row.get("prompt") is None and any(isinstance(row.get(side), list) for side in SIDES):
        return _whole_conversations(row, ignored)
    answered, flaws, unused = prompted(row, SIDES, no_prompt=_NO_PROMPT, whole=_WHOLE)
    ignored += unused
    if flaws:
        return Shaped(None, flaws, ignored)
    chosen, rejected = answered
    if chosen == rejected:
        return Shaped(None, [Flaw(None, _SAME)], ignored)
    return Shaped(Pair(chosen, rejected), [], ignored)


def scores_are_reversed(row: Mapping[str, Any]) -> bool:
    """Whether the row's own scores call ``rejected`` the better one."""
    chosen, rejected = (row.get(f"score_{side}") for side in SIDES)
    if isinstance(chosen, bool) or isinstance(rejected, bool):
        return False
    return isinstance(chosen, int | float) and isinstance(rejected, int | float) and chosen < rejected


def _mixed(row: Mapping[str, Any]) -> list[Flaw]:
    """The refusal of a string on one side and a list on the other."""
    kinds = [kind(row.get(side)) for side in SIDES]
    if sorted(kinds) != ["a list", "a string"]:
        return []
    told = " and ".join(f"`{side}` is {what}" for side, what in zip(SIDES, kinds, strict=True))
    return [Flaw(None, f"{told}: make both strings, or both lists of messages")]


def _whole_conversations(row: Mapping[str, Any], ignored: list[str]) -> Shaped:
    flaws: list[Flaw] = []
    sides: list[tuple[Message, ...]] = []
    for side, other in (SIDES, SIDES[::-1]):
        if side not in row:
            flaws.append(Flaw(side, f"is missing beside `{other}`"))
            continue
        messages, wrong, unused = turns(side, row[side])
        sides.append(messages)
        flaws += wrong
        ignored += unused
    if flaws:
        return Shaped(None, flaws, ignored)
    chosen, rejected = sides
    common = shared(chosen, rejected)
    if flaws := _split_flaws(chosen, rejected, common):
        return Shaped(None, flaws, ignored)
    pair = Pair(Conversation(chosen, common, "chosen"), Conversation(rejected, common, "rejected"))
    return Shaped(pair, [], ignored)


def _split_flaws(chosen: tuple[Message, ...], rejected: tuple[Message, ...], common: int) -> list[Flaw]:
    """What keeps the first ``common`` messages from being the prompt."""
    if chosen == rejected:
        return [Flaw(None, _SAME)]
    if not any(message.role == "user" for message in chosen[:common]):
        reason = "is missing, and `chosen` and `rejected` have no user turn in common at their beginning"
        return [Flaw("prompt", reason)]
    if common == min(len(chosen), len(rejected)):
        short, long = SIDES if common == len(chosen) else SIDES[::-1]
        reason = f"`{short}` is the beginning of `{long}`: nothing is left of it after the messages in common"
        return [Flaw(None, reason)]
    return [
        Flaw(
            f"{side}[{common}].role",
            f"is {role}: after the messages in common comes an assistant turn on each side",
        )
        for side, role in zip(SIDES, (chosen[common].role, rejected[common].role), strict=True)
        if role != "assistant"
    ]
