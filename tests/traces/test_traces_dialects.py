"""Shapes of other tools: ShareGPT, Alpaca, OpenAI's preferences; and what tells that two prompts are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepctl.traces.methods import feedback, preference, sft
from stepctl.traces.shapes.examples import Completion, Conversation, Feedback, Message, Pair, Text, ToolCall, prompt_of

ASK, SAY = {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}
USER, REPLY = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
U, R, OTHER = Message("user", "a"), Message("assistant", "b"), Message("assistant", "c")
ALPACA = {"instruction": "a", "output": "b"}
OPENAI = {
    "input": {"messages": [USER], "tools": [{"name": "f"}], "parallel_tool_calls": True},
    "preferred_output": [REPLY],
    "non_preferred_output": [REPLY | {"content": "c"}],
}


def shape(row: dict[str, Any]) -> Any:
    return sft.shape(row).example


@pytest.mark.parametrize("column", ["conversations", "conversation", "messages"])
def test_sharegpt_is_messages(column: str) -> None:
    shaped = sft.shape({column: [ASK, SAY], "id": "x"})
    assert shaped.example == Conversation((U, R))
    assert shaped.example.field(1) == f"{column}[1].value"
    assert shaped.ignored == ["id"]
    assert shaped.kind == ("messages" if column == "messages" else "ShareGPT")
    assert shape({column: [USER, REPLY]}) == Conversation((U, R))
    assert shape({column: [ASK, REPLY]}) == Conversation((U, R))
    assert shape({column: json.dumps([ASK, SAY])}) == Conversation((U, R))


@pytest.mark.parametrize(
    ("speakers", "role"),
    [
        (["human", "user"], "user"),
        (["gpt", "assistant", "model", "chatgpt", "bing", "bard"], "assistant"),
        (["system"], "system"),
        (["tool", "observation"], "tool"),
    ],
)
def test_speakers_of_sharegpt(speakers: list[str], role: str) -> None:
    for speaker in speakers:
        conversation = shape({"conversations": [ASK, {"from": speaker, "value": "x"}, SAY]})
        assert conversation.messages[1] == Message(role, "x")


def test_calls_weights_tools_and_system_of_sharegpt() -> None:
    call = {"name": "f", "arguments": {"x": 1}}
    row = {
        "conversations": [
            ASK,
            SAY | {"weight": 0},
            {"from": "function_call", "value": json.dumps(call)},
            {"from": "observation", "value": "22"},
            {"from": "function_call", "value": json.dumps([call, call])},
        ],
        "tools": '[{"name": "f"}]',
        "system": "s",
    }
    conversation = shape(row)
    made = ToolCall("f", '{"x": 1}')
    assert conversation.messages == (
        Message("system", "s"),
        U,
        R._replace(supervised=False),
        Message("assistant", "", calls=(made,)),
        Message("tool", "22"),
        Message("assistant", "", calls=(made, made)),
    )
    assert conversation.tools == '[{"name": "f"}]'
    assert [conversation.field(n) for n in (0, 1)] == ["system", "conversations[0].value"]


def test_sharegpt_of_the_other_methods() -> None:
    pair = {"conversations": [ASK], "chosen": SAY, "rejected": {"from": "gpt", "value": "c"}}
    shaped = preference.shape(pair)
    assert shaped.kind == "ShareGPT"
    assert shaped.example == Pair(Conversation((U, R), 1), Conversation((U, OTHER), 1))
    assert shaped.example.rejected.fields == ("conversations[0].value", "rejected.value")
    assert preference.shape({"chosen": [ASK, SAY], "rejected": [ASK, pair["rejected"]]}).example == shaped.example
    labelled = feedback.shape({"conversations": [ASK, SAY], "label": "no"})
    assert labelled.example == Feedback(Conversation((U, R), 1), False)
    assert labelled.kind == "ShareGPT"


def test_alpaca_is_a_conversation() -> None:
    assert shape(ALPACA) == Conversation((U, R))
    for empty in ("", " \n", None):
        shaped = sft.shape(ALPACA | {"input": empty, "system": empty, "history": []})
        assert shaped.example == Conversation((U, R))
        assert shaped.ignored == []
        assert shaped.kind == "Alpaca"
    assert shape(ALPACA | {"input": "more"}) == Conversation((Message("user", "a\n\nmore"), R))
    whole = ALPACA | {"system": "s", "history": [["x", "y"]], "tools": [{"name": "f"}]}
    assert shape(whole) == Conversation(
        (Message("system", "s"), Message("user", "x"), Message("assistant", "y"), U, R), tools='[{"name": "f"}]'
    )
    fields = [shape(whole).field(n) for n in range(5)]
    assert fields == ["system", "history[0][0]", "history[0][1]", "instruction", "output"]


def test_alpaca_of_the_other_methods() -> None:
    assert feedback.shape(ALPACA | {"label": True}).example == Feedback(Conversation((U, R), 1), True)
    shaped = preference.shape({"instruction": "a", "input": "", "chosen": "b", "rejected": "c"})
    assert shaped.example == Pair(Conversation((U, R), 1), Conversation((U, OTHER), 1))
    assert shaped.kind == "Alpaca"
    thought = ALPACA | {"output": "<think>x</think>b"}
    assert sft.shape(thought, thinking="drop").example == Conversation((U, R))


def test_openai_preferences() -> None:
    shaped = preference.shape(OPENAI)
    tools = '[{"name": "f"}]'
    assert shaped.example == Pair(Conversation((U, R), 1, tools=tools), Conversation((U, OTHER), 1, tools=tools))
    assert shaped.example.chosen.fields == ("input.messages[0].content", "preferred_output[0].content")
    assert shaped.ignored == ["input.parallel_tool_calls"]
    assert shaped.kind == "OpenAI preference"


@pytest.mark.parametrize(
    ("method", "row", "field", "words"),
    [
        (sft, {"conversations": [ASK | {"from": "secret"}, SAY]}, "conversations[0].from", "is none of system"),
        (sft, {"conversations": [ASK | {"role": "user"}, SAY]}, "conversations[0]", "mixes `role` and `content`"),
        (sft, {"conversations": [ASK | USER, SAY]}, "conversations[0]", "mixes"),
        (sft, {"conversations": [ASK, SAY | {"value": 5}]}, "conversations[1].value", "is a number"),
        (sft, {"conversations": [ASK, {"from": "gpt"}]}, "conversations[1].value", "is missing"),
        (sft, {"conversations": [ASK, SAY | {"weight": 0}]}, "conversations", "nothing is supervised"),
        (sft, {"conversations": [ASK]}, "conversations", "no assistant turn"),
        (
            sft,
            {"conversations": [ASK, {"from": "function_call", "value": "secret"}]},
            "conversations[1].value",
            "a call is written as",
        ),
        (
            sft,
            {"conversations": [ASK, {"from": "function_call", "value": '{"name": "f"}'}]},
            "conversations[1].value.arguments",
            "is missing",
        ),
        (sft, {"conversations": [ASK, {"from": "function_call", "value": " "}]}, "conversations[1].value", "white"),
        (sft, {"conversations": [ASK, SAY], "conversation": [ASK, SAY]}, None, "several shapes at once"),
        (sft, {"conversations": [ASK, SAY], "messages": [USER, REPLY]}, None, "several shapes at once"),
        (
            sft,
            {"conversations": [{"from": "system", "value": "x"}, ASK, SAY], "system": "secret"},
            "system",
            "stands beside a system turn in `conversations`",
        ),
        (sft, {"instruction": "secret", "input": ""}, "output", "the row has `instruction`, `input`"),
        (sft, ALPACA | {"output": " "}, "output", "white space"),
        (sft, ALPACA | {"output": None}, "output", "is null"),
        (sft, ALPACA | {"instruction": ""}, "instruction", "is empty"),
        (sft, {"input": "secret", "output": "b"}, "instruction", "rename `input`"),
        (sft, ALPACA | {"input": 5}, "input", "is a number"),
        (sft, ALPACA | {"history": "secret"}, "history", "not a list of pairs"),
        (sft, ALPACA | {"history": [["secret"]]}, "history[0]", "has 1 texts, not a pair"),
        (sft, ALPACA | {"history": [["secret", None]]}, "history[0][1]", "is null"),
        (sft, ALPACA | {"messages": [USER, REPLY]}, None, "`instruction`, `output`, `messages`"),
        (sft, ALPACA | {"text": "secret"}, None, "`instruction`, `output`, `text`"),
        (preference, {"instruction": "a", "prompt": "b", "chosen": "c", "rejected": "d"}, None, "several shapes"),
        (preference, {"instruction": 5, "chosen": "c", "rejected": "d"}, "instruction", "is a number"),
        (preference, ALPACA | {"chosen": "c", "rejected": "d"}, "output", "belongs to SFT and KTO rows"),
        (preference, OPENAI | {"input": "secret"}, "input", "is a string: write an object"),
        (preference, OPENAI | {"input": {}}, "input.messages", "is missing"),
        (preference, OPENAI | {"input": {"messages": [5]}}, "input.messages[0]", "is a number"),
        (preference, OPENAI | {"preferred_output": "secret"}, "preferred_output", "is a string, but `input.messages`"),
        (preference, OPENAI | {"preferred_output": [USER, REPLY]}, "preferred_output", "belongs to `input`"),
        (preference, OPENAI | {"non_preferred_output": [REPLY]}, None, "`preferred_output` and `non_preferred_output`"),
        (
            preference,
            {"input": {"messages": [USER]}, "preferred_output": [REPLY]},
            "non_preferred_output",
            "is missing",
        ),
        (preference, OPENAI | {"chosen": "secret"}, None, "several shapes at once"),
        (preference, OPENAI | {"tools": [{}]}, "tools", "stands outside `input`"),
        (sft, OPENAI, "preferred_output", "belongs to DPO"),
        (feedback, OPENAI | {"label": True}, "preferred_output", "belongs to DPO"),
    ],
)
def test_what_is_wrong_is_named_and_never_quoted(
    method: Any, row: dict[str, Any], field: str | None, words: str
) -> None:
    shaped = method.shape(row)
    assert shaped.example is None
    assert shaped.flaws[0].field == field
    assert words in shaped.flaws[0].reason
    assert "secret" not in str(shaped.flaws)


def prompt(method: Any, row: dict[str, Any]) -> Any:
    example = method.shape(row).example
    assert example is not None
    hash(prompt_of(example))
    return prompt_of(example)


def test_the_same_prompt_with_another_answer() -> None:
    another = REPLY | {"content": "c"}
    asked = prompt(sft, {"messages": [USER, REPLY]})
    assert asked == prompt(sft, {"messages": [USER, another]}) == prompt(sft, {"prompt": "a", "completion": [REPLY]})
    assert asked == prompt(sft, {"messages": [USER, REPLY | {"thinking": "x"}, USER, REPLY | {"weight": 0}]})
    assert asked != prompt(sft, {"messages": [USER, REPLY], "tools": [{"name": "f"}]})
    assert asked == prompt(preference, {"prompt": "a", "chosen": [REPLY], "rejected": [another]})
    assert asked == prompt(feedback, {"messages": [USER, REPLY], "label": 1})
    muted = {"messages": [USER, REPLY | {"weight": 0}, USER, REPLY]}
    assert prompt(sft, muted) == prompt(sft, {"messages": [USER, REPLY, USER, another]})
    assert prompt_of(Completion("a", "b")) == "a" == prompt_of(Pair(Completion("a", "b"), Completion("a", "c")))
    assert prompt_of(Text("a")) is None
    assert prompt_of(Conversation((U,))) is None
