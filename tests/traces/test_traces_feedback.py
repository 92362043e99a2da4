"""Shapes of KTO rows: one reply to a prompt, and a label that is true or false beyond doubt."""

from __future__ import annotations

from typing import Any

import pytest

from stepctl.traces.methods.feedback import shape
from stepctl.traces.shapes.examples import Completion, Conversation, Feedback, Message

USER = {"role": "user", "content": "a"}
REPLY = {"role": "assistant", "content": "b"}
U, R = Message("user", "a"), Message("assistant", "b")
STRINGS = {"prompt": "a", "completion": "b", "label": True}


def flaws(row: dict[str, Any]) -> list[tuple[str | None, str]]:
    shaped = shape(row)
    assert (shaped.example is None) == bool(shaped.flaws)
    return [tuple(flaw) for flaw in shaped.flaws]


def test_two_strings() -> None:
    assert shape(STRINGS).example == Feedback(Completion("a", "b"), True)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "completion": [REPLY]},
        {"prompt": "a", "completion": [REPLY], "messages": None},
        {"messages": [USER, REPLY], "prompt": None},
    ],
    ids=["two lists", "a string is a user turn", "messages"],
)
def test_shapes_of_one_conversation_are_one_example(row: dict[str, Any]) -> None:
    assert shape(row | {"label": False}).example == Feedback(Conversation((U, R), 1), False)


def test_the_last_turn_alone_is_the_completion() -> None:
    row = {"messages": [USER, REPLY, USER, REPLY, REPLY], "label": True}
    assert shape(row).example == Feedback(Conversation((U, R, U, R, R), 4), True)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        *[
            (value, True)
            for value in (True, 1, 1.0, "1", "true", "TRUE", "Yes", "desirable", "good", "thumbs_up", "👍")
        ],
        *[(value, False) for value in (False, 0, 0.0, "0", "False", "no", "Undesirable", "bad", "Thumbs_Down", "👎")],
    ],
)
@pytest.mark.parametrize("name", ["label", "desirable"])
def test_labels(name: str, value: object, meant: bool) -> None:
    assert shape({"prompt": "a", "completion": "b", name: value}).example == Feedback(Completion("a", "b"), meant)


@pytest.mark.parametrize("both", [{"label": 1, "desirable": True}, {"label": None, "desirable": 1}])
def test_two_names_may_agree(both: dict[str, Any]) -> None:
    shaped = shape(STRINGS | both)
    assert shaped.example == Feedback(Completion("a", "b"), True)
    assert shaped.ignored == []


def test_other_columns_are_named() -> None:
    row = STRINGS | {"id": 1, "chosen": None, "completion": [REPLY | {"at": "x"}]}
    assert shape(row).ignored == ["id", "completion[].at"]


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ({"label": True}, None, "none of `prompt` and `completion`, `messages`, `conversations`, or"),
        ({"question": "secret", "answer": "b", "label": True}, None, "it has `question`, `answer`, `label`"),
        ({**STRINGS, "messages": [USER, REPLY]}, None, "several shapes at once: `prompt`, `completion`, `messages`"),
        ({"prompt": "a", "completion": "b"}, "label", "is missing"),
        ({**STRINGS, "label": None}, "label", "is null"),
        ({**STRINGS, "label": None, "desirable": None}, "label", "is null"),
        ({**STRINGS, "label": 0.5}, "label", "none of true, false, 1 or 0"),
        ({**STRINGS, "label": -1}, "label", "none of true, false, 1 or 0"),
        ({**STRINGS, "label": " true"}, "label", "is a string that is not read as a label"),
        ({**STRINGS, "label": ""}, "label", "is a string that is not read as a label"),
        ({**STRINGS, "label": "secret"}, "label", "is a string"),
        ({**STRINGS, "label": []}, "label", "is a list"),
        ({"prompt": "a", "completion": "b", "desirable": "secret"}, "desirable", "is a string"),
        ({**STRINGS, "desirable": "no"}, "label", "contradict"),
        ({**STRINGS, "desirable": "n"}, "desirable", "is a string"),
        ({**STRINGS, "desirable": False}, "label", "`label` and `desirable` contradict each other"),
        ({"prompt": "a", "label": True}, "completion", "is missing beside `prompt`"),
        ({"completion": "a", "label": True}, "prompt", "is missing beside `completion`"),
        ({**STRINGS, "prompt": None}, "prompt", "is null"),
        ({**STRINGS, "prompt": ""}, "prompt", "is empty"),
        ({**STRINGS, "prompt": []}, "prompt", "is empty"),
        ({**STRINGS, "prompt": [USER]}, "completion", "is a string, but `prompt` is a list"),
        ({**STRINGS, "completion": " "}, "completion", "white space"),
        ({**STRINGS, "completion": 3}, "completion", "is a number"),
        ({**STRINGS, "completion": []}, "completion", "is empty"),
        ({**STRINGS, "completion": [USER]}, "completion", "no assistant turn"),
        ({**STRINGS, "completion": [USER, REPLY]}, "completion", "begins with a user turn"),
        ({**STRINGS, "completion": [REPLY, USER, REPLY]}, "completion", "has 3 messages, not one assistant turn"),
        ({**STRINGS, "completion": [REPLY, REPLY]}, "completion", "has 2 messages"),
        ({"messages": None, "label": True}, "messages", "is null"),
        ({"messages": [], "label": True}, "messages", "is empty"),
        ({"messages": [REPLY], "label": True}, "messages", "no prompt before its last turn"),
        ({"messages": [{"role": "system", "content": ""}, REPLY], "label": True}, "messages", "no prompt"),
        ({"messages": [USER, REPLY, USER], "label": True}, "messages", "ends with a user turn"),
        ({"messages": [USER, REPLY | {"content": 5}], "label": True}, "messages[1].content", "is a number"),
        ({"text": "secret", "label": True}, "text", "belongs to SFT rows, not to KTO"),
        ({"prompt": "a", "chosen": "secret", "rejected": "c"}, "chosen", "belongs to DPO preferences"),
        ({**STRINGS, "labels": True}, "labels", "belongs to labels"),
        ({**STRINGS, "tools": [{}]}, "tools", "needs a conversation"),
        ({**STRINGS, "completion": [REPLY | {"weight": 0}]}, "completion[0].weight", "weights are for SFT alone"),
    ],
)
def test_what_is_wrong_is_named_and_never_quoted(row: dict[str, Any], field: str | None, words: str) -> None:
    found = flaws(row)
    assert found[0][0] == field
    assert words in found[0][1]
    assert "secret" not in str(found)


def test_all_flaws_of_a_row_are_told() -> None:
    assert [field for field, _ in flaws({"prompt": 1, "completion": "", "label": "x", "desirable": 5})] == [
        "prompt",
        "completion",
        "label",
        "desirable",
    ]
