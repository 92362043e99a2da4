"""The shapes of a row for DPO.

A row has ``chosen`` and ``rejected``, and its prompt in ``prompt``, ``conversations`` or ``instruction`` (and
``input``). It may lack the prompt where both sides are lists of messages: the whole messages that they begin with in
common are it. A text is never split. OpenAI's form has ``input``, ``preferred_output`` and ``non_preferred_output``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepctl.traces.shapes.columns import (
    ALPACA,
    OPENAI_PREFERENCE,
    PREFERENCE,
    SHAREGPT,
    Found,
    foreign,
    kind_of,
    no_shape,
    refuse_changes,
    tools_text,
)
from stepctl.traces.shapes.dialects import ALPACA_COLUMNS, OPENAI_COLUMNS, alpaca_prompt, openai_prompt
from stepctl.traces.shapes.examples import Conversation, Message, Pair, Shaped, Thinking, shared, unmuted
from stepctl.traces.shapes.messages import Turns, turns, weights
from stepctl.traces.shapes.prompted import Prompt, answer, kinds_of, prompt_of_columns, strings_only, with_system

SIDES = ("chosen", "rejected")
OPENAI_SIDES = OPENAI_COLUMNS[1:]
SHAPES = "`prompt`, `chosen` and `rejected`, or `input`, `preferred_output` and `non_preferred_output`"
_PROMPTS = {"prompt": PREFERENCE, "conversations": SHAREGPT, "conversation": SHAREGPT, "instruction": ALPACA}
_OTHERS = {
    "messages": "SFT and KTO rows",
    "completion": "SFT and KTO rows",
    "output": "SFT and KTO rows",
    "text": "SFT rows",
    "label": "KTO labels",
    "desirable": "KTO labels",
    "labels": "labels",
}
_NO_PROMPT = "; only lists of messages can do without, since a text is never split"
_SAME = "are the same: there is nothing to prefer; leave the row out"


def shape(row: dict[str, Any], *, thinking: Thinking = "keep") -> Shaped:
    """Take a row as a pair."""
    found = Found(thinking)
    if foreign(row, _OTHERS, "DPO", found) or not _one_shape(row, found):
        return found.shaped(None, kind_of(row))
    refuse_changes(row, found)
    if _is_openai(row):
        found.unused(row, (*OPENAI_COLUMNS, "system", "tools"))
        return found.shaped(_pair(row, openai_prompt(row, found), OPENAI_SIDES, found), OPENAI_PREFERENCE)
    if _mixed(row, found):
        return found.shaped(None, kind_of(row))
    asked = next((name for name in _PROMPTS if row.get(name) is not None), None)
    if asked is None and "a list" in kinds_of(row, SIDES):
        found.unused(row, (*SIDES, "system", "tools"))
        return found.shaped(_whole_conversations(row, found), PREFERENCE)
    if asked == "instruction":
        found.unused(row, (*SIDES, *ALPACA_COLUMNS))
        return found.shaped(_pair(row, alpaca_prompt(row, found), SIDES, found), ALPACA)
    asked = asked or next((name for name in _PROMPTS if name in row), "prompt")
    found.unused(row, (*SIDES, asked, "system", "tools"))
    there = next((side for side in SIDES if side in row), "")
    prompt = prompt_of_columns(row, asked, found, beside=f" beside `{there}`{_NO_PROMPT}")
    return found.shaped(_pair(row, prompt, SIDES, found), _PROMPTS[asked])


def scores_are_reversed(row: Mapping[str, Any]) -> bool:
    """Whether the row's own scores call ``rejected`` the better one."""
    chosen, rejected = (row.get(f"score_{side}") for side in SIDES)
    if isinstance(chosen, bool) or isinstance(rejected, bool):
        return False
    return isinstance(chosen, int | float) and isinstance(rejected, int | float) and chosen < rejected


def _one_shape(row: Mapping[str, Any], found: Found) -> bool:
    """Whether a row has one prompt and one pair of sides at most, and anything at all."""
    if not any(column in row for column in (*_PROMPTS, *SIDES, *OPENAI_SIDES)):
        no_shape(row, SHAPES, found)
        return False
    prompts = [name for name in _PROMPTS if row.get(name) is not None]
    openai = [name for name in OPENAI_SIDES if row.get(name) is not None]
    sides = [name for name in SIDES if row.get(name) is not None]
    if len(prompts) > 1 or (openai and (prompts or sides)):
        several = ", ".join(f"`{name}`" for name in (*prompts, *sides, *openai))
        found.flaw(None, f"has several shapes at once: {several}; keep one of {SHAPES}")
    return not found.flaws


def _is_openai(row: Mapping[str, Any]) -> bool:
    if any(row.get(side) is not None for side in OPENAI_SIDES):
        return True
    return not any(column in row for column in (*_PROMPTS, *SIDES))


def _mixed(row: Mapping[str, Any], found: Found) -> bool:
    """Whether a string is on one side and messages on the other: refused."""
    kinds = kinds_of(row, SIDES)
    if sorted(kinds) != ["a list", "a string"]:
        return False
    told = " and ".join(f"`{side}` is {what}" for side, what in zip(SIDES, kinds, strict=True))
    found.flaw(None, f"{told}: make both strings, or both lists of messages")
    return True


def _pair(row: Mapping[str, Any], prompt: Prompt, sides: tuple[str, ...], found: Found) -> Pair | None:
    """The two sides, each with the prompt."""
    there = next((name for name in (prompt.column, *sides) if name in row), "input")
    whole = f"leave `{prompt.column}` out where both sides are whole conversations"
    if sides == OPENAI_SIDES:
        whole = "what comes before the reply belongs to `input`"
    answered = [answer(row, prompt, side, found, beside=there, whole=whole) for side in sides]
    strings_only(row, prompt, answered, found)
    for side, one in zip(sides, answered, strict=True):
        if isinstance(one, Conversation):
            weights(side, one, found)
    chosen, rejected = answered
    if found.flaws or chosen is None or rejected is None:
        return None
    if chosen == rejected:
        found.flaw(None, f"`{sides[0]}` and `{sides[1]}` {_SAME}")
    return Pair(chosen, rejected)


def _whole_conversations(row: Mapping[str, Any], found: Found) -> Pair | None:
    tools = tools_text("tools", row.get("tools"), found)
    read: list[Turns] = []
    for side, other in (SIDES, SIDES[::-1]):
        if side not in row:
            found.flaw(side, f"is missing beside `{other}`: write it, or leave the row out")
        elif one := turns(side, row[side], found):
            read.append(with_system(row, side, one, found))
    if found.flaws:
        return None
    plain = [unmuted(one.messages) for one in read]
    common = shared(*plain)
    _check_split(plain, [one.places(side) for side, one in zip(SIDES, read, strict=True)], common, found)
    if not found.flaws:
        for side, one in zip(SIDES, read, strict=True):
            weights(side, Conversation(one.messages, common, side, one.fields), found)
    chosen, rejected = (
        Conversation(messages, common, side, one.fields, tools)
        for side, messages, one in zip(SIDES, plain, read, strict=True)
    )
    return Pair(chosen, rejected)


def _check_split(
    sides: Sequence[tuple[Message, ...]], places: Sequence[tuple[str, ...]], common: int, found: Found
) -> None:
    """Refuse what keeps the first ``common`` messages from being the prompt; ``places`` are those of their contents."""
    chosen, rejected = sides
    if chosen == rejected:
        found.flaw(None, f"`chosen` and `rejected` {_SAME}")
        return
    if not any(message.role == "user" for message in chosen[:common]):
        reason = "is missing, and `chosen` and `rejected` have no user turn in common at their beginning"
        found.flaw("prompt", f"{reason}: write `prompt`, or leave the row out")
        return
    if common == min(len(chosen), len(rejected)):
        short, long = SIDES if common == len(chosen) else SIDES[::-1]
        reason = f"`{short}` is the beginning of `{long}`: nothing is left of it after the messages in common"
        found.flaw(None, f"{reason}; leave the row out")
        return
    for messages, fields in zip(sides, places, strict=True):
        if (role := messages[common].role) != "assistant":
            place, _, key = fields[common].rpartition(".")
            reason = f"is {role}: after the messages in common comes an assistant turn on each side"
            found.flaw(f"{place}.{'from' if key == 'value' else 'role'}", reason)
