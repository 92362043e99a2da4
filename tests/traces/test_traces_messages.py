"""Messages of every form: parts, weights, tools and calls, thinking; what is wrong is named by its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepctl.traces.methods import feedback, preference
from stepctl.traces.methods.sft import shape
from stepctl.traces.shapes.examples import Conversation, Message, Shaped, ToolCall

USER = {"role": "user", "content": "a"}
REPLY = {"role": "assistant", "content": "b"}
FUNCTION = {"name": "f", "arguments": {"x": "é", "n": 1}}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL = {"role": "tool", "content": "22", "tool_call_id": "c1", "name": "f"}
CALLED = ToolCall("f", '{"x": "é", "n": 1}', "c1")

ARGUMENTS = "messages[1].tool_calls[0].arguments"


def reply(**keys: Any) -> dict[str, Any]:
    return {"messages": [USER, REPLY | keys]}


def text(*parts: object) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(parts)}]}


def chat(shaped: Shaped) -> Conversation:
    assert shaped.flaws == []
    assert isinstance(shaped.example, Conversation)
    return shaped.example


def part(words: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": words}


@pytest.mark.parametrize(
    "parts",
    [
        [part("one two")],
        [part("one "), part("two")],
        ["one ", "two"],
        [part("", "input_text"), part("one two", "output_text")],
        [{**part("one two"), "image_url": None}],
    ],
)
def test_text_parts_are_the_string_that_they_join_to(parts: list[Any]) -> None:
    as_string = {"messages": [USER, {"role": "assistant", "content": "one two"}]}
    assert shape(text(*parts)) == shape(as_string)


def test_keys_of_parts_that_are_not_used_are_named() -> None:
    assert shape(text({**part("x"), "cache_control": {}})).ignored == ["messages[].content[].cache_control"]


def test_a_weight_of_0_makes_a_reply_context() -> None:
    row = {"messages": [USER, REPLY | {"weight": 0.0}, USER, REPLY | {"weight": 1}, USER, REPLY | {"weight": None}]}
    assert [m.supervised for m in chat(shape(row)).messages] == [True, False, True, True, True, True]


def test_a_weight_on_another_turn_is_noted() -> None:
    shaped = shape({"messages": [USER | {"weight": 1}, REPLY]})
    assert chat(shaped) == chat(shape({"messages": [USER, REPLY]}))
    assert [(note.code, note.field) for note in shaped.notes] == [("weight_ignored", "messages[0].weight")]


def test_weights_mean_nothing_in_prompts_of_other_methods() -> None:
    muted = [USER, REPLY | {"weight": 0}, USER]
    plain = [USER, REPLY, USER]
    bad = {"role": "assistant", "content": "c"}
    for change in (lambda prompt: {"prompt": prompt, "chosen": [REPLY], "rejected": [bad]}, _whole):
        assert preference.shape(change(muted)).example == preference.shape(change(plain)).example
    whole = [{"messages": [*prompt, REPLY], "label": True} for prompt in (muted, plain)]
    assert feedback.shape(whole[0]).example == feedback.shape(whole[1]).example


def _whole(prompt: list[dict[str, Any]]) -> dict[str, Any]:
    return {"chosen": [*prompt, REPLY], "rejected": [*prompt, {"role": "assistant", "content": "c"}]}


def test_calls_in_both_forms_and_as_text_are_one() -> None:
    forms: list[Any] = [
        CALL,
        FUNCTION | {"id": "c1"},
        {**CALL, "function": {"name": "f", "arguments": json.dumps(FUNCTION["arguments"])}},
    ]
    for form in forms:
        for content in ({"content": None}, {"content": ""}, {}):
            row = {"messages": [USER, {"role": "assistant", "tool_calls": [form], **content}, TOOL, REPLY]}
            assert chat(shape(row)).messages == (
                Message("user", "a"),
                Message("assistant", "", calls=(CALLED,)),
                Message("tool", "22", name="f", call_id="c1"),
                Message("assistant", "b"),
            )


def test_words_stand_beside_calls_and_no_calls_are_none() -> None:
    assert chat(shape(reply(tool_calls=[CALL]))).messages[1] == Message("assistant", "b", calls=(CALLED,))
    assert chat(shape(reply(tool_calls=[]))).messages[1] == Message("assistant", "b")
    assert chat(shape(reply(tool_calls=None))).messages[1] == Message("assistant", "b")


def test_a_reply_that_calls_can_be_what_a_label_or_a_preference_is_about() -> None:
    row = {"messages": [USER, CALLS], "label": True, "tools": [{"name": "f"}]}
    judged = feedback.shape(row).example
    assert judged is not None
    pair = preference.shape({"prompt": "a", "chosen": [CALLS], "rejected": [REPLY], "tools": [{"name": "f"}]}).example
    assert pair is not None
    assert pair.chosen.tools == pair.rejected.tools == '[{"name": "f"}]'  # type: ignore[union-attr]
    whole = preference.shape({"chosen": [USER, CALLS], "rejected": [USER, REPLY], "tools": [{"name": "f"}]}).example
    assert whole == pair


def test_tools_as_text_are_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "é", "parameters": {}}}]
    expected = json.dumps(tools, ensure_ascii=False)
    row = {"messages": [USER, REPLY]}
    assert chat(shape(row | {"tools": tools})).tools == expected
    assert chat(shape(row | {"tools": json.dumps(tools, indent=1)})).tools == expected
    for none in ([], None, "", " ", "[]", "null"):
        shaped = shape(row | {"tools": none})
        assert chat(shaped).tools == ""
        assert shaped.ignored == []


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thinking_is_kept_or_dropped(key: str) -> None:
    assert chat(shape(reply(**{key: "hm"}))).messages[1] == Message("assistant", "b", thinking="hm")
    assert chat(shape(reply(**{key: "hm"}), thinking="drop")).messages[1] == Message("assistant", "b")
    assert chat(shape(reply(**{key: None}))).messages[1] == Message("assistant", "b")
    assert shape(reply(**{key: "hm"}), thinking="drop").ignored == []


def test_thinking_is_dropped_from_where_a_reply_begins_alone() -> None:
    row = reply(content="\n<think>\nhm\n</think>\n\nb <think>c</think>")
    assert chat(shape(row)).messages[1].content == row["messages"][1]["content"]
    assert chat(shape(row, thinking="drop")).messages[1].content == "b <think>c</think>"
    user = {"messages": [{"role": "user", "content": "<think>a</think>"}, REPLY]}
    assert chat(shape(user, thinking="drop")).messages[0].content == "<think>a</think>"
    called = reply(content="<think>hm</think>", tool_calls=[CALL])
    assert chat(shape(called, thinking="drop")).messages[1] == Message("assistant", "", calls=(CALLED,))
    pair = {
        "prompt": "a",
        "chosen": [REPLY | {"thinking": "x"}],
        "rejected": [REPLY | {"content": "<think>y</think>c"}],
    }
    kept, dropped = preference.shape(pair).example, preference.shape(pair, thinking="drop").example
    assert kept.chosen.messages[1].thinking == "x"  # type: ignore[union-attr]
    assert [side.messages[1] for side in (dropped.chosen, dropped.rejected)] == [  # type: ignore[union-attr]
        Message("assistant", "b"),
        Message("assistant", "c"),
    ]


def test_sides_that_differ_in_thinking_alone_are_the_same_without_it() -> None:
    pair = {"prompt": "a", "chosen": [REPLY | {"thinking": "x"}], "rejected": [REPLY | {"thinking": "y"}]}
    assert preference.shape(pair).example is not None
    assert "are the same" in preference.shape(pair, thinking="drop").flaws[0].reason


def test_a_message_by_itself_is_a_list_of_one() -> None:
    row = {"prompt": "a", "chosen": REPLY, "rejected": [REPLY | {"content": "c"}]}
    listed = preference.shape(row | {"chosen": [REPLY]})
    assert preference.shape(row).example == listed.example
    wrong = preference.shape(row | {"chosen": REPLY | {"content": 5}}).flaws
    assert [flaw.field for flaw in wrong] == ["chosen.content"]


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        (text({"type": "image_url", "image_url": "secret"}), "messages[1].content[0]", "of type image_url: only text"),
        (text(part("a"), {"type": "refusal"}), "messages[1].content[1]", "of type refusal"),
        (text({"type": "thinking"}), "messages[1].content[0]", "write it as `reasoning_content`"),
        (text({"type": "secret"}), "messages[1].content[0]", "of an unknown type"),
        (text({"type": ["secret"]}), "messages[1].content[0]", "of an unknown type"),
        (text({"text": "secret"}), "messages[1].content[0]", "without a type"),
        (text({"type": "text"}), "messages[1].content[0].text", "is missing"),
        (text({"type": "text", "text": 5}), "messages[1].content[0].text", "is a number"),
        (text({**part("secret"), "image_url": {"url": "secret"}}), "messages[1].content[0]", "also has image_url"),
        (text(5), "messages[1].content[0]", "is a number, not a part"),
        (text(), "messages[1].content", "is empty"),
        (text(part(" ")), "messages[1].content", "white space"),
        (reply(weight=0.5), "messages[1].weight", "neither 0 nor 1"),
        (reply(weight=True), "messages[1].weight", "is a boolean, not 0 or 1"),
        (reply(weight="1"), "messages[1].weight", "is a string, not 0 or 1"),
        (reply(train=False), "messages[1].train", "write `weight`: 0"),
        (reply(weight=0), "messages", "every assistant turn has weight 0"),
        ({"messages": [USER | {"weight": 2}, REPLY]}, "messages[0].weight", "neither 0 nor 1"),
        (reply(tool_calls="secret"), "messages[1].tool_calls", "is a string, not a list of calls"),
        (reply(tool_calls=[5]), "messages[1].tool_calls[0]", "is a number"),
        (reply(tool_calls=[{}]), "messages[1].tool_calls[0].name", "is missing"),
        (reply(tool_calls=[{"function": 5}]), "messages[1].tool_calls[0].function", "is a number"),
        (reply(tool_calls=[CALL | {"type": "custom"}]), "messages[1].tool_calls[0].type", 'is not "function"'),
        (reply(tool_calls=[CALL | {"id": 5}]), "messages[1].tool_calls[0].id", "is a number"),
        (reply(tool_calls=[CALL | {"name": "f"}]), "messages[1].tool_calls[0]", "beside `function`"),
        (reply(tool_calls=[FUNCTION | {"name": " "}]), "messages[1].tool_calls[0].name", "is empty"),
        (reply(tool_calls=[{"name": "f"}]), ARGUMENTS, "is missing: write {}"),
        (reply(tool_calls=[FUNCTION | {"arguments": ""}]), ARGUMENTS, "is empty"),
        (reply(tool_calls=[FUNCTION | {"arguments": "{secret"}]), ARGUMENTS, "no JSON"),
        (reply(tool_calls=[FUNCTION | {"arguments": "[1]"}]), ARGUMENTS, "text of a list"),
        (reply(tool_calls=[FUNCTION | {"arguments": "NaN"}]), ARGUMENTS, "NaN"),
        (
            reply(tool_calls=[FUNCTION | {"arguments": '{"a": 1, "a": 2}'}]),
            ARGUMENTS,
            "twice",
        ),
        (
            reply(tool_calls=[FUNCTION | {"arguments": '{"a": "\\ud800"}'}]),
            ARGUMENTS,
            "surrogate",
        ),
        (reply(tool_calls=[FUNCTION | {"arguments": "[" * 9999}]), ARGUMENTS, "nested"),
        (reply(tool_calls=[FUNCTION | {"arguments": '{"a":' * 101 + "1" + "}" * 101}]), ARGUMENTS, "more than 100"),
        (reply(tool_calls=[FUNCTION | {"arguments": 5}]), ARGUMENTS, "is a number"),
        ({"messages": [USER | {"tool_calls": [CALL]}, REPLY]}, "messages[0].tool_calls", "only the assistant"),
        (reply(function_call=FUNCTION), "messages[1].function_call", "write `tool_calls`"),
        (reply(tools=[{}]), "messages[1].tools", "belongs to the whole row"),
        (reply(images=["secret"]), "messages[1].images", "only text is trained"),
        (reply(refusal="secret"), "messages[1].refusal", "write it as `content`"),
        ({"messages": [USER, CALLS | {"tool_calls": []}]}, "messages[1].content", "is null"),
        ({"messages": [USER, TOOL | {"content": {"secret": 1}}, REPLY]}, "messages[1].content", "JSON text"),
        ({"messages": [USER, TOOL | {"tool_call_id": 5}, REPLY]}, "messages[1].tool_call_id", "is a number"),
        (reply(name=5), "messages[1].name", "is a number"),
        (reply(thinking=True), "messages[1].thinking", "is a boolean"),
        (reply(thinking="secret", reasoning="b"), "messages[1].reasoning", "differs"),
        ({"messages": [USER | {"thinking": "secret"}, REPLY]}, "messages[0].thinking", "only the assistant thinks"),
        ({"messages": [{"role": "human", "content": "a"}, REPLY]}, "messages[0].role", "write `user`"),
        ({"messages": [{"role": "function", "content": "a"}, REPLY]}, "messages[0].role", "write `tool`"),
        ({"messages": [USER, REPLY], "tools": "[secret"}, "tools", "is text that is no JSON"),
        ({"messages": [USER, REPLY], "tools": {"name": "secret"}}, "tools", "is an object, not a list"),
        ({"messages": [USER, REPLY], "tools": '{"name": 1}'}, "tools", "is text of an object"),
        ({"messages": [USER, REPLY], "tools": [{}, "secret"]}, "tools[1]", "is a string"),
        ({"messages": [USER, REPLY], "tools": [{"a": float("inf")}]}, "tools", "JSON cannot write"),
        ({"messages": [USER, REPLY], "system": 5}, "system", "is a number"),
        (
            {"messages": [{"role": "system", "content": "a"}, USER, REPLY], "system": "secret"},
            "system",
            "stands beside a system turn in `messages`",
        ),
    ],
)
def test_what_is_wrong_is_named_and_never_quoted(row: dict[str, Any], field: str, words: str) -> None:
    shaped = shape(row)
    assert shaped.example is None
    assert shaped.flaws[0].field == field
    assert words in shaped.flaws[0].reason
    assert "secret" not in str(shaped.flaws)


def test_an_empty_reply_is_bad_when_its_thinking_is_dropped() -> None:
    assert shape(reply(content="<think>hm</think>")).example is not None
    (flaw,) = shape(reply(content="<think>hm</think>"), thinking="drop").flaws
    assert flaw.field == "messages[1].content"
    assert "thinking alone" in flaw.reason


def test_all_flaws_of_a_message_are_told() -> None:
    wrong = {"role": "x", "content": [5, {}], "weight": "1", "name": 2, "thinking": 3, "tool_calls": 4}
    assert [flaw.field for flaw in shape({"messages": [wrong]}).flaws] == [
        "messages[0].role",
        "messages[0].tool_calls",
        "messages[0].content[0]",
        "messages[0].content[1]",
        "messages[0].thinking",
        "messages[0].name",
        "messages[0].weight",
    ]


def test_when_every_token_is_supervised_a_weight_of_0_cannot_hold() -> None:
    row = {"messages": [USER, REPLY | {"weight": 0}, USER, REPLY]}
    assert shape(row).example is not None
    assert [flaw.field for flaw in shape(row, need_assistant=False).flaws] == ["messages[1].weight"]


@pytest.mark.parametrize("value", [False, 0, 0.0, "false", "no", []])
@pytest.mark.parametrize("key", ["train", "training", "loss"])
def test_a_switch_that_may_leave_a_turn_out_is_never_passed_over(key: str, value: object) -> None:
    """Only true (1 is it too), which changes nothing, and null are."""
    row: dict[str, Any] = {"messages": [USER, {**REPLY, key: value}]}
    (flaw,) = shape(row).flaws
    assert flaw.field == f"messages[1].{key}" and "write `weight`" in flaw.reason
    for fine in (True, None):
        row["messages"][1][key] = fine
        assert shape(row).flaws == []
