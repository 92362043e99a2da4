"""Shapes of DPO rows: two sides of one prompt, which is never split out of a text."""

from __future__ import annotations

from typing import Any

import pytest

from stepctl.traces.methods.preference import scores_are_reversed, shape
from stepctl.traces.shapes.examples import Completion, Conversation, Message, Pair

SYSTEM = {"role": "system", "content": "c"}
USER = {"role": "user", "content": "a"}
GOOD = {"role": "assistant", "content": "b"}
BAD = {"role": "assistant", "content": "secret"}
TOOL = {"role": "tool", "content": "t"}
U, G, B = Message("user", "a"), Message("assistant", "b"), Message("assistant", "secret")
STRINGS = {"prompt": "a", "chosen": "b", "rejected": "c"}


def flaws(row: dict[str, Any]) -> list[tuple[str | None, str]]:
    shaped = shape(row)
    assert (shaped.example is None) == bool(shaped.flaws)
    return [tuple(flaw) for flaw in shaped.flaws]


def conversations(row: dict[str, Any]) -> tuple[Conversation, Conversation]:
    pair = shape(row).example
    assert isinstance(pair, Pair)
    assert isinstance(pair.chosen, Conversation)
    assert isinstance(pair.rejected, Conversation)
    return pair.chosen, pair.rejected


def test_three_strings() -> None:
    assert shape(STRINGS).example == Pair(Completion("a", "b"), Completion("a", "c"))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": "a", "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": None, "chosen": [USER, GOOD], "rejected": [USER | {"id": "x"}, BAD], "messages": None},
    ],
    ids=["messages", "a string is a user turn", "no prompt", "a null prompt"],
)
def test_shapes_of_one_pair_are_one_example(row: dict[str, Any]) -> None:
    assert shape(row).example == Pair(Conversation((U, G), 1), Conversation((U, B), 1))


def test_the_prompt_in_common_is_of_whole_messages_and_as_long_as_can_be() -> None:
    start = [SYSTEM, USER, GOOD, USER]
    near = {"role": "assistant", "content": "bb"}
    chosen, rejected = conversations({"chosen": [*start, GOOD, TOOL, GOOD], "rejected": [*start, near]})
    assert (chosen.prompt, rejected.prompt) == (4, 4)
    assert (len(chosen.messages), len(rejected.messages)) == (7, 5)
    assert conversations({"chosen": [USER, GOOD, GOOD], "rejected": [USER, GOOD, BAD]})[0].prompt == 2


def test_texts_are_named_by_where_they_stand() -> None:
    sides = {"chosen": [GOOD, TOOL, GOOD], "rejected": [BAD]}
    chosen, rejected = conversations({"prompt": [SYSTEM, USER], **sides})
    assert [chosen.field(n) for n in (0, 1, 2, 4)] == [
        "prompt[0].content",
        "prompt[1].content",
        "chosen[0].content",
        "chosen[2].content",
    ]
    assert rejected.field(2) == "rejected[0].content"
    assert [conversations({"prompt": "a", **sides})[1].field(n) for n in (0, 1)] == ["prompt", "rejected[0].content"]
    assert conversations({"chosen": [USER, GOOD], "rejected": [USER, BAD]})[1].field(1) == "rejected[1].content"


def test_other_columns_are_named() -> None:
    shaped = shape({**STRINGS, "score_chosen": 1, "score_rejected": 0, "messages": None, "tools": []})
    assert shaped.example is not None
    assert shaped.ignored == ["score_chosen", "score_rejected"]
    assert shape({"chosen": [USER, GOOD], "rejected": [USER, BAD | {"id": 1}]}).ignored == ["rejected[].id"]


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ({}, None, "none of `prompt`, `chosen` and `rejected`, or `input`"),
        ({"question": "secret"}, None, "it has `question`"),
        ({"chosen": "b", "rejected": "secret"}, "prompt", "is missing beside `chosen`; only lists"),
        ({"prompt": None, "chosen": "b", "rejected": "c"}, "prompt", "is null"),
        ({"prompt": "a", "chosen": "b"}, "rejected", "is missing beside `prompt`"),
        ({"prompt": "a", "rejected": "b"}, "chosen", "is missing"),
        ({"chosen": [USER, GOOD]}, "rejected", "is missing beside `chosen`"),
        ({"rejected": [USER, GOOD]}, "chosen", "is missing beside `rejected`"),
        ({"chosen": [USER, GOOD], "rejected": None}, "rejected", "is null, not a list of messages"),
        ({**STRINGS, "chosen": None}, "chosen", "is null"),
        ({**STRINGS, "chosen": 5}, "chosen", "is a number, not a string or a list of messages"),
        ({**STRINGS, "rejected": True}, "rejected", "is a boolean"),
        ({**STRINGS, "rejected": {"secret": 1}}, "rejected", "is an object"),
        ({**STRINGS, "prompt": {"secret": 1}}, "prompt", "is an object, not a string or a list"),
        ({**STRINGS, "prompt": ""}, "prompt", "is empty"),
        ({**STRINGS, "prompt": " \n"}, "prompt", "white space"),
        ({**STRINGS, "chosen": ""}, "chosen", "is empty"),
        ({**STRINGS, "rejected": "\t "}, "rejected", "white space"),
        ({**STRINGS, "prompt": [USER]}, "chosen", "is a string, but `prompt` is a list"),
        ({"prompt": "a", "chosen": "secret", "rejected": [BAD]}, None, "`chosen` is a string and `rejected` is a list"),
        ({"chosen": [USER, GOOD], "rejected": "secret"}, None, "`chosen` is a list and `rejected` is a string"),
        ({"prompt": [], "chosen": [GOOD], "rejected": [BAD]}, "prompt", "is empty"),
        (
            {"prompt": [{"role": "system", "content": " "}], "chosen": [GOOD], "rejected": [BAD]},
            "prompt",
            "only white space",
        ),
        (
            {"prompt": [{"role": "user", "content": " "}], "chosen": [GOOD], "rejected": [BAD]},
            "prompt[0].content",
            "wh",
        ),
        ({"prompt": "a", "chosen": [], "rejected": [BAD]}, "chosen", "is empty"),
        ({"prompt": "a", "chosen": ["secret"], "rejected": [BAD]}, "chosen[0]", "is a string"),
        ({"prompt": "a", "chosen": [GOOD | {"content": ""}], "rejected": [BAD]}, "chosen[0].content", "is empty"),
        (
            {"prompt": "a", "chosen": [GOOD | {"weight": 0}], "rejected": [BAD]},
            "chosen[0].weight",
            "weights are for SFT alone",
        ),
        ({"prompt": "a", "chosen": [TOOL], "rejected": [BAD]}, "chosen", "no assistant turn"),
        ({"prompt": "a", "chosen": [USER, GOOD], "rejected": [BAD]}, "chosen", "begins with a user turn"),
        ({"prompt": "a", "chosen": [GOOD], "rejected": [TOOL, BAD]}, "rejected", "begins with a tool turn"),
        ({**STRINGS, "chosen": "secret", "rejected": "secret"}, None, "are the same"),
        ({"prompt": [USER], "chosen": [BAD], "rejected": [BAD | {"id": "n"}]}, None, "are the same"),
        ({"chosen": [USER, BAD], "rejected": [USER, BAD]}, None, "are the same"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "prompt", "no user turn in common"),
        ({"chosen": [SYSTEM, USER, GOOD], "rejected": [USER, BAD]}, "prompt", "no user turn in common"),
        ({"chosen": [SYSTEM, GOOD], "rejected": [SYSTEM, BAD]}, "prompt", "no user turn in common"),
        ({"chosen": [USER], "rejected": [USER, BAD]}, None, "`chosen` is the beginning of `rejected`"),
        ({"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD]}, None, "`rejected` is the beginning of"),
        ({"chosen": [USER, TOOL, GOOD], "rejected": [USER, BAD]}, "chosen[1].role", "is tool: after the messages"),
        (
            {"chosen": [USER, GOOD], "rejected": [USER, {"role": "user", "content": "secret"}, BAD]},
            "rejected[1].role",
            "is user",
        ),
        ({**STRINGS, "messages": [USER, GOOD]}, "messages", "belongs to SFT and KTO rows, not to DPO"),
        ({"prompt": "a", "completion": "secret"}, "completion", "belongs to SFT and KTO rows"),
        ({**STRINGS, "text": "secret"}, "text", "belongs to SFT rows"),
        ({**STRINGS, "label": False}, "label", "belongs to KTO labels"),
        ({**STRINGS, "desirable": True}, "desirable", "belongs to KTO labels"),
        ({**STRINGS, "tools": [{}]}, "tools", "needs a conversation"),
        ({**STRINGS, "output": "secret"}, "output", "belongs to SFT and KTO rows"),
    ],
)
def test_what_is_wrong_is_named_and_never_quoted(row: dict[str, Any], field: str | None, words: str) -> None:
    found = flaws(row)
    assert found[0][0] == field
    assert words in found[0][1]
    assert "secret" not in str(found)


def test_all_flaws_of_a_row_are_told() -> None:
    assert [field for field, _ in flaws({"prompt": 1, "chosen": [GOOD, 5], "rejected": []})] == [
        "prompt",
        "chosen[1]",
        "rejected",
    ]
    assert [field for field, _ in flaws({"chosen": [USER, 5], "rejected": [{}]})] == [
        "chosen[1]",
        "rejected[0].role",
        "rejected[0].content",
    ]
    roles = {"chosen": [USER, TOOL, GOOD], "rejected": [USER, SYSTEM, BAD]}
    assert [field for field, _ in flaws(roles)] == ["chosen[1].role", "rejected[1].role"]


@pytest.mark.parametrize(
    ("chosen", "rejected", "told"),
    [
        (2, 7, True),
        (0.5, 1, True),
        (7, 2, False),
        (3, 3, False),
        ("2", 7, False),
        (False, True, False),
        (None, 1, False),
    ],
)
def test_scores_are_compared_when_both_are_numbers(chosen: object, rejected: object, told: bool) -> None:
    assert scores_are_reversed({"score_chosen": chosen, "score_rejected": rejected}) is told


def test_places_are_those_of_the_row_also_behind_a_system_column() -> None:
    row = {"system": "s", "chosen": [USER, TOOL, GOOD], "rejected": [USER, {"from": "gpt", "value": "c", "weight": 0}]}
    assert [field for field, _ in flaws(row)] == ["chosen[1].role"]
    row = {"system": "s", "chosen": [USER, GOOD | {"weight": 0}], "rejected": [USER, BAD | {"weight": 0}]}
    assert [field for field, _ in flaws(row)] == ["chosen[1].weight", "rejected[1].weight"]
    told = {"system": "s", "chosen": [USER, GOOD], "rejected": [USER, {"from": "human", "value": "x"}, BAD]}
    assert [field for field, _ in flaws(told)] == ["rejected[1].from"]
