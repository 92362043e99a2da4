"""Chat templates of many families: each chat is refused for a reason, or rendered and masked exactly.

The templates are read from the installed TRL (its folder ``chat_templates``, Apache-2.0), none is copied here. What
each family accepts is pinned, so that none can come to refuse everything unnoticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepctl.traces.render.chat import ChatPlacer, ConversationRefused
from stepctl.traces.render.mask import encode, mask, prepare
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.shapes.examples import Conversation, Message, ToolCall
from stepctl.traces.shown import spans

pytestmark = pytest.mark.torch

MakeFolder = Callable[..., Path]
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Weather by city",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ]
)
SYSTEM, ASK, AGAIN = Message("system", "Be brief."), Message("user", "Is it two?"), Message("user", "é😀 'x' <b> \n")
REPLY, LAST = Message("assistant", "Two is\n two."), Message("assistant", " four 44 ")
CALL = Message("assistant", "", calls=(ToolCall("get_weather", '{"city": "Oslo"}', "call00001"),))
SAID = CALL._replace(content="Let me look.")
ANSWER = Message("tool", "8 degrees", name="get_weather", call_id="call00001")
THOUGHT = Message("assistant", "Paris.", thinking="It is one plus one.")
THOUGHT_CALL = CALL._replace(thinking="I look it up.")
SPELLS = "a CONTROL b"

CHATS = {
    "plain": Conversation((ASK, REPLY, AGAIN, LAST)),
    "system": Conversation((SYSTEM, ASK, REPLY, AGAIN, LAST)),
    "not learned": Conversation((ASK, REPLY._replace(supervised=False), AGAIN, LAST)),
    "call": Conversation((ASK, CALL, ANSWER, REPLY), tools=TOOLS),
    "two calls": Conversation((SYSTEM, ASK, SAID._replace(calls=CALL.calls * 2), ANSWER, ANSWER, LAST), tools=TOOLS),
    "says and calls": Conversation((ASK, SAID, ANSWER, REPLY, AGAIN, LAST), tools=TOOLS),
    "ends with a call": Conversation((SYSTEM, ASK, REPLY, AGAIN, CALL), tools=TOOLS),
    "untold tools": Conversation((ASK, CALL, ANSWER, REPLY)),
    "thinks": Conversation((ASK, THOUGHT)),
    "thinks early": Conversation((ASK, THOUGHT, AGAIN, LAST)),
    "thought before": Conversation((ASK, THOUGHT, AGAIN, LAST), prompt=3),
    "thinks and calls": Conversation((ASK, THOUGHT_CALL, ANSWER, THOUGHT), tools=TOOLS),
    "thinks inside": Conversation((ASK, Message("assistant", "<think>\nIt is.\n</think>\n\nTwo."))),
    "spells": Conversation((Message("user", "Is CONTROL one?"), Message("assistant", f"{SPELLS} c"), AGAIN, LAST)),
}

TEXT, CALLS, THINKS = "leaves out the text of", "leaves out a tool call", "leaves out the reasoning"
NO_TOOLS, RAISES, UNCLOSED = "leaves out the tools", "refuses this conversation: ", "no special token"
WITH_TOOLS = ("call", "two calls", "says and calls", "ends with a call", "thinks and calls")
NO_THINKING = dict.fromkeys(("thinks", "thinks early"), THINKS)
TURNS = "Conversation roles must alternate"
NO_TOOLS_AT_ALL = {**dict.fromkeys(WITH_TOOLS, NO_TOOLS), "untold tools": CALLS, **NO_THINKING}
NO_TOOL_TURNS = {
    **dict.fromkeys((*WITH_TOOLS, "untold tools"), RAISES + TURNS),
    "ends with a call": NO_TOOLS,
    **NO_THINKING,
}
NO_SYSTEM = dict.fromkeys(("system", "two calls", "ends with a call"), RAISES + "System role not supported")
FAMILIES: dict[str, dict[str, str]] = {
    "qwen3": {"thinks early": THINKS},
    "qwen2_5": NO_THINKING | {"thinks and calls": THINKS},
    "qwen3_5_think": {"thinks early": THINKS},
    "llama3": NO_TOOLS_AT_ALL,
    "llama3_1": NO_THINKING
    | {"two calls": RAISES + "This model only supports single", "says and calls": TEXT, "thinks and calls": THINKS},
    "gemma": NO_TOOL_TURNS | NO_SYSTEM,
    "gemma3": NO_TOOL_TURNS,
    "phi3_5": NO_TOOLS_AT_ALL,
    "cohere2": NO_TOOL_TURNS,
    "deepseekv3": NO_TOOLS_AT_ALL | {"untold tools": "generation prompt", "thinks inside": THINKS},
    "deepseek_r1_distill": NO_TOOLS_AT_ALL | {"thinks inside": THINKS},
    "lfm2_v2": NO_THINKING | {"thinks and calls": THINKS},
    # Its turns end where the next one begins.
    "glm4moe": dict.fromkeys(CHATS, UNCLOSED) | {"thinks early": THINKS},
    "gptoss": {"two calls": TEXT, "says and calls": TEXT, "thinks early": THINKS, "thinks and calls": THINKS},
    "nemotron_3_nano": {"thinks early": THINKS},
}
"""Of each template the chats that are refused, and why; it accepts all others."""


def folder(make_folder: MakeFolder, name: str) -> Path:
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    template = (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()
    marks = set(re.findall("<[|\uff5c][^<>\\s']+?[|\uff5c]>|</?(?:start|end)_[a-z_]+>", template)) | {"<bos>", "<eos>"}
    options: dict[str, Any] = {"bos": "<bos>", "eos": "<eos>", "post": "<bos> $A"}
    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    return make_folder(template, special=sorted(marks), plain=plain, **options)


def outcome(tokenizer: TextTokenizer, chat: Conversation) -> tuple[str, list[str], str, list[int]]:
    """The reason of a refusal, or the supervised texts, the whole and its ids."""
    placer = ChatPlacer(tokenizer)
    try:
        first = prepare(chat, placer, everything=False)
        again = prepare(chat, placer, everything=False)
    except ConversationRefused as error:
        return error.reason, [], "", []
    assert first == again
    masked = mask(first, encode([first], tokenizer)[0], tokenizer)
    assert all(label in (-100, i) for i, label in zip(masked.ids, masked.labels, strict=True))
    shown = spans(tokenizer, masked.ids, masked.labels)
    assert "".join(text for text, _ in shown) == tokenizer.decode(masked.ids)
    return "", [text for text, supervised in shown if supervised], first.text, masked.ids


def spelling(chat: Conversation, tokenizer: TextTokenizer) -> Conversation:
    """The chat with a control token that the template writes where it says CONTROL."""
    token = sorted(token for token in tokenizer.special if token in (tokenizer.template or ""))[-1]
    messages = (m._replace(content=m.content.replace("CONTROL", token)) for m in chat.messages)
    return replace(chat, messages=tuple(messages))


def words(message: Message) -> list[str]:
    """What a reply's span must hold, each once for each call."""
    called = [text for call in message.calls for text in (call.name, *json.loads(call.arguments).values())]
    told = [message.thinking, *re.split("</?think>", message.content)]
    return [text.strip() for text in told if text.strip()] + called


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family(make_folder: MakeFolder, name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    path = folder(make_folder, name)
    tokenizer, theirs = load_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    for kind, plain in CHATS.items():
        chat = spelling(plain, tokenizer)
        reason, spoken, text, ids = outcome(tokenizer, chat)
        refused = FAMILIES[name].get(kind, "")
        assert (refused in reason) and bool(refused) == bool(reason), (kind, reason)
        if reason:
            continue
        data, tools = [message.data() for message in chat.messages], json.loads(chat.tools or "null")
        assert text == theirs.apply_chat_template(data, tools=tools, tokenize=False), kind
        controls = theirs.apply_chat_template(data, tools=tools, return_dict=False)
        if kind == "spells":
            # Fewer control tokens: the spelled ones are text.
            assert len(special(tokenizer, ids)) == len(special(tokenizer, controls)) - 2
            assert tokenizer.decode(ids) == tokenizer.decode(controls)
        else:
            assert ids == controls, kind
        assert_words(tokenizer, chat, spoken)
        last = len(chat.messages) - 1
        before = theirs.apply_chat_template(data[:last], tools=tools, tokenize=False, add_generation_prompt=True)
        if text.startswith(before):
            assert text[len(before) :].startswith(spoken[-1]), kind


def special(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    return [text for text in map(tokenizer.decode, ([i] for i in ids)) if text in tokenizer.special]


def assert_words(tokenizer: TextTokenizer, chat: Conversation, spoken: list[str]) -> None:
    """Each span has the words of its turn and of no other, and ends with a control token."""
    learned = [m for n, m in enumerate(chat.messages) if m.role == "assistant" and n >= chat.prompt and m.supervised]
    assert len(spoken) == len(learned)
    for span, message in zip(spoken, learned, strict=True):
        said = words(message)
        assert all(text in span for text in said), (span, said)
        assert any(span.endswith(token) for token in tokenizer.special), span
        others = {text for other in chat.messages if other != message for text in words(other)} - set(said)
        assert not any(text in span for text in others), span
        rest = span
        for text in said:
            rest = rest.replace(text, "", 1)
        # What else is there the template writes: marks and the frame of a call.
        assert message.calls or re.fullmatch(
            r"(\s|</?think>|<[|\uff5c]?[^<>\s]+[|\uff5c]?>|assistant|analysis|final)*", rest
        ), rest


def test_spans_of_calls_and_thinking_are_exact(make_folder: MakeFolder) -> None:
    called = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>'
    tokenizer = load_tokenizer(folder(make_folder, "qwen3"))
    assert outcome(tokenizer, CHATS["says and calls"])[1] == [
        f"Let me look.\n{called}",
        "Two is\n two.<|im_end|>",
        "<think>\n\n</think>\n\n four 44 <|im_end|>",
    ]
    assert outcome(tokenizer, CHATS["thinks and calls"])[1] == [
        f"<think>\nI look it up.\n</think>\n\n{called}",
        "<think>\nIt is one plus one.\n</think>\n\nParis.<|im_end|>",
    ]
    weighted = Conversation((ASK, CALL._replace(supervised=False), ANSWER, REPLY, AGAIN, LAST), tools=TOOLS)
    assert len(outcome(tokenizer, weighted)[1]) == 2
