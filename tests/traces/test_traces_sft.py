"""Shapes of rows: one of three, each by its own, and every field that is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepctl.traces.methods.sft import shape
from stepctl.traces.shapes.examples import Completion, Conversation, Message, Text

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
    shaped = shape({"messages": [USER | {"at": "x"}, REPLY], "id": 3, "meta": {"a": []}, "parallel_tool_calls": False})
    assert shaped.example is not None
    assert sorted(shaped.ignored) == ["id", "messages[].at", "meta", "parallel_tool_calls"]


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        (
            {},
            None,
            "has none of `messages`, `conversations`, `prompt` and `completion`, `instruction` and `output`, or `text`",
        ),
        ({"question": "secret", "answer": "b"}, None, "it has `question`, `answer`"),
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
        ({"text": "a", "tools": [{}]}, "tools", "needs a conversation, but `text`"),
        ({"prompt": "a", "completion": "b", "tools": [{}]}, "tools", "needs a conversation, but these strings"),
        ({"prompt": "a", "completion": "b", "system": "secret"}, "system", "needs a conversation"),
        ({"text": "a", "weight": 0}, "weight", "not supported"),
        ({"messages": [USER, REPLY], "functions": [{}]}, "functions", "write `tools`"),
        ({"messages": [USER, REPLY], "image": "secret"}, "image", "only text"),
        ({"text": "a", "preferred_output": [REPLY]}, "preferred_output", "DPO"),
        ({"prompt": "a"}, "completion", "is missing"),
        ({"completion": "a"}, "prompt", "use `text`"),
        ({"prompt": "", "completion": "a"}, "prompt", "use `text`"),
        ({"prompt": " ", "completion": "a"}, "prompt", "use `text`"),
        ({"prompt": None, "completion": "a"}, "prompt", "is null"),
        ({"prompt": "a", "completion": None}, "completion", "is null"),
        ({"prompt": "a", "completion": ""}, "completion", "is empty"),
        ({"prompt": "a", "completion": "  \n"}, "completion", "white space"),
        ({"prompt": [USER], "completion": "a"}, "completion", "is a string, but `prompt` is a list"),
        ({"messages": None}, "messages", "is null"),
        ({"messages": []}, "messages", "is empty"),
        ({"messages": {}}, "messages", "is an object"),
        ({"messages": '[{"role": "user"}]'}, "messages[0].content", "is missing"),
        ({"messages": '[{"secret'}, "messages", "is text that is no JSON at its column"),
        ({"messages": "secret"}, "messages", "is a string, not a list of messages"),
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
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "refusal", "text": "secret"}, {"type": "secret"}]},
                ]
            },
            "messages[1].content[0]",
            "of type refusal",
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


def test_prompt_and_completion_may_be_messages() -> None:
    prompt, reply = Message("user", "a"), Message("assistant", "b")
    expected = Conversation((prompt, reply), 1)
    assert shape({"prompt": "a", "completion": [REPLY]}).example == expected
    assert shape({"prompt": [USER], "completion": [REPLY]}).example == expected
    assert shape({"prompt": [USER], "completion": REPLY}).example == expected
    with_tools = shape({"prompt": "a", "completion": [REPLY], "tools": [{"name": "f"}], "system": "s"}).example
    assert with_tools == Conversation((Message("system", "s"), prompt, reply), 2, tools='[{"name": "f"}]')
    assert [with_tools.field(n) for n in range(3)] == ["system", "prompt", "completion[0].content"]


def test_messages_may_be_json_text() -> None:
    row = {"messages": json.dumps([USER, REPLY])}
    assert shape(row) == shape({"messages": [USER, REPLY]})


def test_a_text_that_looks_like_messages_stays_a_text_and_is_noted() -> None:
    text = json.dumps([USER, REPLY])
    shaped = shape({"prompt": "a", "completion": text})
    assert shaped.example == Completion("a", text)
    assert [(note.code, note.field) for note in shaped.notes] == [("messages_in_text", "completion")]
    assert shape({"prompt": "a", "completion": "[1, 2]"}).notes == []


def test_kinds_are_named_also_of_bad_rows() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"messages": [USER, REPLY]}, "messages"),
        ({"messages": []}, "messages"),
        ({"prompt": "a", "completion": "b"}, "prompt and completion"),
        ({"text": "a"}, "text"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference"),
        ({"input": {}, "preferred_output": [], "non_preferred_output": []}, "OpenAI preference"),
        ({"conversations": []}, "ShareGPT"),
        ({"instruction": "a"}, "Alpaca"),
        ({"a": 1}, ""),
    ]
    assert [shape(row).kind for row, _ in rows] == [kind for _, kind in rows]


def test_a_text_keeps_its_system_column_as_any_other() -> None:
    shaped = shape({"text": "a", "system": "linux", "tools": [], "images": []})
    assert shaped.example == Text("a")
    assert shaped.ignored == ["system"]


def test_thinking_is_dropped_from_completions_but_not_from_texts() -> None:
    row = {"prompt": "a", "completion": "<think>hm</think>\n\nb"}
    assert shape(row).example == Completion("a", row["completion"])
    assert shape(row, thinking="drop").example == Completion("a", "b")
    assert shape({"text": row["completion"]}, thinking="drop").example == Text(row["completion"])
    empty = shape({"prompt": "a", "completion": "<think>secret</think> "}, thinking="drop").flaws
    assert [(flaw.field, "thinking alone" in flaw.reason) for flaw in empty] == [("completion", True)]
