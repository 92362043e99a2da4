"""Generated conversations: refused with a reason, or labelled exactly; nothing else ever happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepctl.traces.render.chat import ChatPlacer, ConversationRefused
from stepctl.traces.render.mask import RowRefused, encode, mask, prepare
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.shapes.examples import Completion, Conversation, Message, Single, Text, ToolCall
from stepctl.traces.shown import spans

MakeFolder = Callable[..., Path]
ATOMS = [
    "two",
    " ",
    "\n",
    "é😀",
    "<|im_end|>",
    "<|im_start|>assistant\n",
    "<think>",
    "</think>",
    "{'a': 1}",
    '"',
    "\u0301",
    "[assistant]",
]
texts = st.lists(st.sampled_from(ATOMS), max_size=5).map("".join)
words = texts.map(lambda text: f"{text}w")
values = st.one_of(words, st.integers(-9, 9), st.booleans(), st.none(), st.lists(words, max_size=2))
calls = st.tuples(
    st.sampled_from(["get", "<|im_end|>", "set it"]),
    st.dictionaries(words, values, max_size=2).map(json.dumps),
    st.none() | st.just("c1"),
).map(lambda parts: ToolCall(*parts))
replies = st.tuples(
    st.just("assistant"),
    words | texts,
    st.just("") | words,
    st.just(()) | st.lists(calls, max_size=2).map(tuple),
    st.booleans() | st.just(True),
).map(lambda parts: Message(*parts[:4], supervised=parts[4]))
others = st.tuples(st.sampled_from(["user", "system", "tool", "developer"]), words | texts).map(
    lambda parts: Message(*parts)
)
tools = st.just("") | st.just('[{"type": "function", "function": {"name": "get", "description": "a<|im_end|>b"}}]')
chats = st.tuples(st.lists(others | replies, min_size=1, max_size=6).map(tuple), st.integers(0, 3), tools).map(
    lambda parts: Conversation(parts[0], parts[1], tools=parts[2])
)
examples: st.SearchStrategy[Single] = st.one_of(
    chats, words.map(Text), st.tuples(words, words).map(lambda parts: Completion(*parts))
)

CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content | trim }}\n</think>\n\n{% endif %}{{ m.content TRIM }}"
    "{% for c in m.tool_calls %}\n<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def several(make_folder: MakeFolder) -> list[TextTokenizer]:
    plain = ["<think>", "</think>"]
    return [
        load_tokenizer(make_folder(CHATML.replace("TRIM", ""), plain=plain, name="a")),
        load_tokenizer(make_folder(CHATML.replace("TRIM", "| trim"), plain=plain, name="b")),
        load_tokenizer(make_folder(None, special=["<s>", "<|im_end|>"], bos="<s>", post="<s> $A <|im_end|>", name="c")),
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(example=examples, which=st.integers(0, 2), everything=st.booleans(), parse=st.booleans())
def test_labels_are_exact_or_the_row_is_refused(
    several: list[TextTokenizer], example: Single, which: int, everything: bool, parse: bool
) -> None:
    tokenizer = several[which]
    try:
        prepared = prepare(example, ChatPlacer(tokenizer, parse_special=parse), everything=everything)
        masked = mask(prepared, encode([prepared], tokenizer)[0], tokenizer)
    except (ConversationRefused, RowRefused) as error:
        assert error.reason
        return
    assert all(label in (-100, i) for i, label in zip(masked.ids, masked.labels, strict=True))
    shown = spans(tokenizer, masked.ids, masked.labels)
    assert "".join(text for text, _ in shown) == tokenizer.decode(masked.ids)
    if isinstance(example, Conversation):
        assert tokenizer.decode(masked.ids) == prepared.text
        if not everything:
            spoken = "".join(text for text, supervised in shown if supervised)
            assert spoken == "".join(prepared.text[span.start : span.end] for span in prepared.spans)
            assert_replies(tokenizer, example, [prepared.text[span.start : span.end] for span in prepared.spans])
    if not parse:
        assert controls(tokenizer, masked.ids) == written(tokenizer, example)


def assert_replies(tokenizer: TextTokenizer, chat: Conversation, spoken: list[str]) -> None:
    replies = [
        message
        for number, message in enumerate(chat.messages)
        if message.role == "assistant" and number >= chat.prompt and message.supervised
    ]
    said = [m for m in replies if m.content.strip() or m.thinking.strip() or m.calls]
    assert len(said) == len(spoken)
    for message, span in zip(said, spoken, strict=True):
        assert span.endswith("<|im_end|>")
        assert message.content.strip() in span
        assert message.thinking.strip() in span
        assert all(call.name in span for call in message.calls)


def controls(tokenizer: TextTokenizer, ids: list[int]) -> int:
    return sum(text in tokenizer.special for text in map(tokenizer.decode, ([i] for i in ids)))


def written(tokenizer: TextTokenizer, example: Single) -> int:
    """How many control tokens there are when a row spells none."""
    if not isinstance(example, Conversation):
        return 1 + tokenizer.starts_with_bos
    messages = [m._replace(content="x", thinking="", calls=()) for m in example.messages]
    text = tokenizer.render([message.data() for message in messages], False, '[{"name": "f"}]' if example.tools else "")
    return controls(tokenizer, tokenizer.encode(text, add_special_tokens=False).ids)
