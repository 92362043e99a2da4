"""Shapes of rows: one of three, each by its own, and every field that is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest

from stepctl.traces.sft import shape
from stepctl.traces.shapes import Completion, Conversation, Message, Text

USER = {"role": "user", "content": "a"}
REPLY = {"role": "assistant", "content": "b"}


def flaws(row: dict[str, Any]) -> list[tuple[str | None, str]]:
    shaped = shape(row)
    assert (shaped.example is None) == bool(shaped.flaws)
    return [tuple(flaw) for flaw in shaped.flaws]


def test_the_three_shapes() -> None:
    assert shape({"messages": [USER, REPLY]}).example == Conversation((Message("user", "a"), Message("assistant", "b")))
    assert shape({"prompt": "a", "completion": "b"}).example == Completion("a", "b")
    assert shape({"text": "a"}).example == Text("a")


def test_null_columns_of_other_shapes_do_not_count() -> None:
    row = {
        "text": "a",
        "messages": None,
        "prompt": None,
        "completion": None,
        "chosen": None,
        "label": None,
        "tools": [],
    }
    assert shape(row).example == Text("a")


def test_other_columns_are_named() -> None:
    shaped = shape({"messages": [USER | {"name": "x"}, REPLY], "id": 3, "meta": {"a": []}})
    assert shaped.example is not None
    assert shaped.ignored == ["id", "meta", "messages[].name"]


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ({}, None, "none of `messages`, `prompt` and `completion`, or `text`; it has nothing"),
        ({"instruction": "secret", "output": "b"}, None, "it has `instruction`, `output`"),
        ({"foo\u00e9 a very long key that could be text": 1}, None, "unusual name"),
        ({"text": None}, "text", "is null"),
        ({"text": ""}, "text", "is empty"),
        ({"text": " \n\u00a0"}, "text", "white space"),
        ({"text": 5}, "text", "is a number"),
        ({"text": True}, "text", "is a boolean"),
        ({"text": ["secret"]}, "text", "is a list"),
        ({"text": "a", "messages": [USER, REPLY]}, None, "`text`, `messages`"),
        ({"text": "a", "prompt": "b"}, None, "several shapes"),
        ({"text": "a", "completion": 5}, None, "several shapes"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "chosen", "DPO"),
        ({"prompt": "a", "completion": "b", "label": False}, "label", "KTO"),
        ({"text": "a", "tools": [{}]}, "tools", "not supported"),
        ({"text": "a", "weight": 0}, "weight", "not supported"),
        ({"prompt": "a"}, "completion", "is missing"),
        ({"completion": "a"}, "prompt", "use `text`"),
        ({"prompt": "", "completion": "a"}, "prompt", "use `text`"),
        ({"prompt": " ", "completion": "a"}, "prompt", "use `text`"),
        ({"prompt": None, "completion": "a"}, "prompt", "is null"),
        ({"prompt": "a", "completion": None}, "completion", "is null"),
        ({"prompt": "a", "completion": ""}, "completion", "is empty"),
        ({"prompt": "a", "completion": "  \n"}, "completion", "white space"),
        ({"prompt": [USER], "completion": "a"}, "prompt", "use `messages`"),
        ({"messages": None}, "messages", "is null"),
        ({"messages": []}, "messages", "is empty"),
        ({"messages": {}}, "messages", "is an object"),
        ({"messages": '[{"role": "user"}]'}, "messages", "JSON inside a string"),
        ({"messages": ["secret"]}, "messages[0]", "is a string"),
        ({"messages": [USER]}, "messages", "no assistant turn"),
        ({"messages": [{"content": "a"}, REPLY]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": None, "content": "a"}, REPLY]}, "messages[0].role", "is null"),
        ({"messages": [{"role": 3, "content": "a"}, REPLY]}, "messages[0].role", "is a number"),
        ({"messages": [{"role": "secret", "content": "a"}, REPLY]}, "messages[0].role", "is none of system"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content", "is missing"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1].content", "is null"),
        ({"messages": [USER, {"role": "assistant", "content": 5}]}, "messages[1].content", "is a number"),
        ({"messages": [USER, {"role": "assistant", "content": False}]}, "messages[1].content", "is a boolean"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "messages[1].content", "white space"),
        ({"messages": [{"role": "user", "content": ""}, REPLY]}, "messages[0].content", "is empty"),
        ({"messages": [{"role": "system", "content": None}, REPLY]}, "messages[0].content", "is null"),
        ({"messages": [USER, REPLY | {"tool_calls": [{}]}]}, "messages[1].tool_calls", "not supported"),
        ({"messages": [USER, REPLY | {"content": None, "tool_calls": [{}]}]}, "messages[1].tool_calls", "tool calls"),
        ({"messages": [USER, REPLY | {"weight": 0}]}, "messages[1].weight", "not supported"),
        ({"messages": [USER, REPLY | {"reasoning_content": "secret"}]}, "messages[1].reasoning_content", "reasoning"),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "refusal", "text": "secret"}, {"type": "secret"}]},
                ]
            },
            "messages[1].content",
            "a list of parts (refusal)",
        ),
    ],
)
def test_what_is_wrong_is_named_and_never_quoted(row: dict[str, Any], field: str | None, words: str) -> None:
    found = flaws(row)
    assert found[0][0] == field
    assert words in found[0][1]
    assert "secret" not in str(found)


def test_all_flaws_of_a_row_are_told() -> None:
    assert [field for field, _ in flaws({"messages": [{"role": 5, "content": None}, 3]})] == [
        "messages[0].role",
        "messages[0].content",
        "messages[1]",
    ]
    assert [field for field, _ in flaws({"prompt": 1, "completion": 2})] == ["prompt", "completion"]


def test_empty_system_and_tool_texts_are_kept() -> None:
    row = {"messages": [{"role": "system", "content": ""}, USER, {"role": "tool", "content": ""}, REPLY]}
    assert shape(row).example is not None


def test_without_a_reply_a_conversation_can_be_trained_whole() -> None:
    assert shape({"messages": [USER]}, need_assistant=False).example is not None
