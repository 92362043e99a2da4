"""Exactly the assistant's words and their end-of-turn token are supervised, whatever the template does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepctl.traces.render.chat import ChatPlacer
from stepctl.traces.render.mask import encode, mask, prepare
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import Judgement, SftRow
from stepctl.traces.shapes.examples import Conversation, Message, Text

MakeFolder = Callable[..., Path]
Judge = Callable[..., Judgement]
Supervised = Callable[[TextTokenizer, SftRow], list[str]]
Chat = Callable[..., dict[str, Any]]

BLOCK = "{{ '[' + m['role'] + ']' + m['content'] | trim + '<end>' }}"
TURNS = ("system", "be brief", "user", "is it?", "assistant", "yes it is", "tool", "22", "assistant", " no \n")


def load(make_folder: MakeFolder, template: str | None, **options: Any) -> TextTokenizer:
    return load_tokenizer(make_folder(template, special=["<s>", "<end>", "<eos>"], bos="<s>", eos="<eos>", **options))


def test_every_reply_and_nothing_else(chatml: TextTokenizer, check: Judge, supervised: Supervised, chat: Chat) -> None:
    result = check(chatml, chat(*TURNS))
    assert result.bad == []
    assert supervised(chatml, result.rows[0]) == ["yes it is<|im_end|>", " no \n<|im_end|>"]
    assert result.supervised_tokens == result.rows[0].supervised
    assert chatml.decode(result.rows[0].input_ids) == chatml.render(chat(*TURNS)["messages"], False)


def test_train_on_all_labels_all_but_the_first(chatml: TextTokenizer, check: Judge, chat: Chat) -> None:
    result = check(chatml, chat(*TURNS), chat("user", "no reply"), {"prompt": "a", "completion": "b"}, train_on="all")
    assert result.bad == []
    assert all(row.labels == [-100, *row.input_ids[1:]] for row in result.rows)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(
            "<s>{% for m in messages %}" + BLOCK + "\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
            id="trims",
        ),
        pytest.param(
            "<s>{% for m in messages %}"
            + BLOCK
            + "{% endfor %}{{ '[assistant]' if add_generation_prompt else '<eos>' }}",
            id="ends",
        ),
        pytest.param(
            "<s>{% if messages[0].role != 'system' %}[system]Be good.<end>{% endif %}{% for m in messages %}"
            + BLOCK
            + "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
            id="injects",
        ),
        pytest.param(
            "{% for m in messages %}[{{ m.role }}]"
            "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
            "{{ m.content | trim }}<end>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
            id="thinks in the last turn",
        ),
        pytest.param(
            "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}",
            id="prompts for thinking",
        ),
        pytest.param(
            "<s>{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content | trim }}<end>"
            "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}",
            id="no prompt",
        ),
    ],
)
@pytest.mark.parametrize(
    "turns",
    [
        TURNS,
        TURNS[2:6],
        ("assistant", "yes it is", "user", "a", "user", "b", "assistant", " no \n"),
        ("user", "no", "assistant", "yes it is", "assistant", " no \n"),
        ("user", "[assistant]yes it is", "assistant", "yes it is", "user", "[assistant]", "assistant", " no \n"),
    ],
    ids=["all roles", "one turn", "reply first", "two replies", "look-alikes"],
)
def test_templates(
    make_folder: MakeFolder, check: Judge, supervised: Supervised, chat: Chat, template: str, turns: tuple[str, ...]
) -> None:
    tokenizer = load(make_folder, template)
    result = check(tokenizer, chat(*turns))
    assert result.bad == []
    spans = [text.removeprefix("<think>\n\n</think>\n\n") for text in supervised(tokenizer, result.rows[0])]
    wanted = ["yes it is<end>", "no<end>"]
    assert [span.replace("<end>", "<end>|") for span in spans] in (
        [text.replace("<end>", "<end>|") for text in wanted[: len(spans)]],
        ["yes it is<end>|no<end>|"],  # nothing between two replies
    )
    assert len("".join(spans).split("<end>")) == 1 + turns[::2].count("assistant")


@pytest.mark.parametrize(
    ("template", "field", "words"),
    [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "messages[1].content", "no special token"),
        (
            "{% for m in messages %}<s>{{ m.role }} {{ m.content }}{% endfor %}",
            "messages[1].content",
            "no special token",
        ),
        (
            "{% for m in messages if m.role != 'user' %}{{ m.content }}<end>{% endfor %}",
            "messages[0].content",
            "leaves out",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}<end>{% endfor %}",
            "messages[1].content",
            "leaves out",
        ),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}<end>{% endfor %}", "messages[1].content", "2 times"),
        ("{% for m in messages %}{{ m.content[3:] }}<end>{% endfor %}", "messages[0].content", "leaves out"),
        (
            "{% for m in messages %}{{ m.content }}<end>{{ m.content | length }}{% endfor %}",
            "messages[1].content",
            "depends on the reply",
        ),
        (
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
            "{% if add_generation_prompt %}[model]{% endif %}",
            "messages[1].content",
            "generation prompt",
        ),
        ("{{ raise_exception('not for me') }}", "messages", "not for me"),
    ],
)
def test_a_template_that_cannot_be_masked_is_refused(
    make_folder: MakeFolder, check: Judge, chat: Chat, template: str, field: str, words: str
) -> None:
    result = check(load(make_folder, template), chat("user", "secret one", "assistant", "secret two"))
    assert [(bad.line, bad.field) for bad in result.bad] == [(1, field)]
    assert words in result.bad[0].reason
    assert "secret" not in result.bad[0].reason


def test_a_dropped_role_is_refused_even_when_its_words_stand_elsewhere(
    make_folder: MakeFolder, check: Judge, chat: Chat
) -> None:
    template = "{% for m in messages if m.role != 'developer' %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    rows = [chat("developer", "a", "user", "a", "assistant", "b"), chat("user", "a", "assistant", "b")]
    result = check(load(make_folder, template), *rows)
    assert [(bad.line, bad.field) for bad in result.bad] == [(1, "messages[0].content")]


def test_reasoning_that_an_earlier_turn_loses_is_refused(make_folder: MakeFolder, check: Judge, chat: Chat) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]"
        "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<end>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    one = ("user", "a", "assistant", "<think>why</think>b")
    result = check(load(make_folder, template), chat(*one), chat(*one, "user", "c", "assistant", "d"))
    assert [(bad.line, bad.field) for bad in result.bad] == [(2, "messages[1].content")]
    assert "reasoning" in result.bad[0].reason


def test_reasoning_goes_on_from_the_prompts_thinking_mark(
    make_folder: MakeFolder, check: Judge, supervised: Supervised, chat: Chat
) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}"
    )
    tokenizer = load(make_folder, template)
    result = check(tokenizer, chat("user", "a", "assistant", "<think>\nwhy</think>b"))
    assert supervised(tokenizer, result.rows[0]) == ["why</think>b<end>"]


def control_ids(tokenizer: TextTokenizer, row: SftRow) -> list[str]:
    return [tokenizer.decode([i]) for i in row.input_ids if tokenizer.decode([i]) in tokenizer.special]


def test_a_control_token_in_a_message_is_text(
    chatml: TextTokenizer, check: Judge, supervised: Supervised, chat: Chat
) -> None:
    said = "<|im_end|>\n<|im_start|>user\né"
    result = check(chatml, chat("user", f"a{said}", "assistant", f"b{said} "), chat("user", "a", "assistant", "b"))
    assert result.bad == []
    one, other = result.rows
    assert chatml.decode(one.input_ids) == chatml.render(
        chat("user", f"a{said}", "assistant", f"b{said} ")["messages"], False
    )
    assert supervised(chatml, one) == [f"b{said} <|im_end|>"]
    assert control_ids(chatml, one) == control_ids(chatml, other) == ["<|im_start|>", "<|im_end|>"] * 2


def test_control_tokens_in_texts_are_text_but_for_the_first_bos_and_the_last_eos(
    make_folder: MakeFolder, check: Judge, supervised: Supervised
) -> None:
    tokenizer = load(make_folder, None, post="<s> $A <eos>")
    rows = [
        {"text": "<s>one <eos> two<s><eos>\n"},
        {"prompt": "a<eos>", "completion": "<s>b<end>"},
        {"prompt": "<s>a", "completion": "<end>b<eos>"},
    ]
    result = check(tokenizer, *rows)
    assert result.bad == []
    assert [tokenizer.decode(row.input_ids) for row in result.rows] == [
        "<s>one <eos> two<s><eos>\n",
        "<s>a<eos><s>b<end><eos>",
        "<s>a<end>b<eos>",
    ]
    assert [control_ids(tokenizer, row) for row in result.rows] == [["<s>", "<eos>"]] * 3
    assert [supervised(tokenizer, row) for row in result.rows[1:]] == [["<s>b<end><eos>"], ["<end>b<eos>"]]


def test_control_tokens_in_texts_are_such_when_asked(chatml: TextTokenizer) -> None:
    said = Conversation((Message("user", "a<|im_end|>b"), Message("assistant", "c")))
    for parse, spelled, controls in ((False, 1, 4), (True, 0, 5)):
        placer = ChatPlacer(chatml, parse_special=parse)
        prepared = prepare(said, placer, everything=False)
        (encoded,) = encode([prepared], chatml)
        masked = mask(prepared, encoded, chatml)
        assert prepared.spelled == spelled
        assert sum(chatml.decode([i]) in chatml.special for i in masked.ids) == controls
        text = prepare(Text("a<|im_end|>b"), placer, everything=False)
        assert text.spelled == spelled


def test_a_tokenizer_that_needs_the_whole_text_refuses_spelled_tokens(
    make_folder: MakeFolder, check: Judge, chat: Chat
) -> None:
    folder = make_folder()
    data = json.loads((folder / "tokenizer.json").read_text())
    # Only the very first word of a text gets a space: a stretch taken alone would get one too.
    data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    data["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    data["model"]["vocab"]["\u2581"] = 5000
    data["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(folder)
    (bad,) = check(tokenizer, chat("user", "secret<|im_end|>", "assistant", "b")).bad
    assert bad.field == "messages[0].content"
    assert "train.parse_special_tokens" in bad.reason
    assert "secret" not in bad.reason


def test_chats_have_one_bos_and_texts_one_bos_and_one_eos(make_folder: MakeFolder, check: Judge, chat: Chat) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    tokenizer = load(make_folder, template, post="<s> $A <eos>")
    rows = [
        chat("user", "a", "assistant", "b"),
        {"text": "plain"},
        {"text": "<s>plain<eos>"},
        {"prompt": "a", "completion": "b"},
        {"prompt": "<s>a", "completion": "b<eos>"},
    ]
    result = check(tokenizer, *rows)
    texts = [tokenizer.decode(row.input_ids) for row in result.rows]
    assert texts == ["<s>[user]a<end>[assistant]b<end>", "<s>plain<eos>", "<s>plain<eos>", "<s>ab<eos>", "<s>ab<eos>"]
    assert all(row.labels[0] == -100 and row.labels[-1] != -100 for row in result.rows)


def test_the_completion_and_one_eos_are_supervised(chatml: TextTokenizer, check: Judge, supervised: Supervised) -> None:
    rows = [
        {"prompt": "Answer:", "completion": " Paris"},
        {"prompt": "Answer: ", "completion": "Paris"},
        {"prompt": "two ", "completion": "é😀<|im_end|>\n"},
    ]
    result = check(chatml, *rows)
    assert [supervised(chatml, row) for row in result.rows] == [
        [" Paris<|im_end|>"],
        [" Paris<|im_end|>"],
        ["é😀<|im_end|>\n"],
    ]
    assert [(warning.code, warning.line) for warning in result.warnings] == [("seam", 2)]
    assert chatml.decode(result.rows[0].input_ids) == "Answer: Paris<|im_end|>"


def test_a_seam_inside_a_character_is_seen(chatml: TextTokenizer, check: Judge, supervised: Supervised) -> None:
    result = check(chatml, {"prompt": "e", "completion": "\u0301 two"})
    assert supervised(chatml, result.rows[0])[0].endswith("\u0301 two<|im_end|>")


@pytest.mark.parametrize("template", [None, "chatml"])
def test_the_default_template_is_told_once(
    make_folder: MakeFolder, check: Judge, supervised: Supervised, chat: Chat, template: str | None
) -> None:
    special = ["<s>", "</s>"] if template is None else ["<|im_start|>", "<|im_end|>", "</s>"]
    tokenizer = load_tokenizer(make_folder(None, special=special, eos="</s>"))
    result = check(tokenizer, chat(*TURNS), chat(*TURNS[2:]), {"text": "a"})
    assert result.bad == []
    assert [warning.code for warning in result.warnings] == ["default_template"]
    end = "</s>" if template is None else "<|im_end|>"
    assert [text.strip() for text in supervised(tokenizer, result.rows[0])] == [f"yes it is{end}", f"no \n{end}"]
    assert "22" in tokenizer.decode(result.rows[0].input_ids)
    assert check(tokenizer, {"text": "a"}).warnings == []


def test_an_injected_system_text_is_told_once(make_folder: MakeFolder, check: Judge, chat: Chat) -> None:
    template = (
        "<s>{% if messages[0].role != 'system' %}[system]Be good.<end>{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    )
    tokenizer = load(make_folder, template)
    result = check(tokenizer, chat(*TURNS), *[chat(*TURNS[2:6], "user", str(n)) for n in range(3)])
    assert [(warning.code, "3 rows" in warning.message) for warning in result.warnings] == [("injected_text", True)]
    empty = load(make_folder, template.replace("Be good.", ""), name="empty")
    assert check(empty, chat(*TURNS[2:])).warnings == []
