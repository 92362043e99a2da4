"""Rendering and ids equal those of transformers, with chat templates that models are shipped with."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepctl.traces.rows import Judgement, SftRow
from stepctl.traces.tokenizer import load_tokenizer

pytestmark = pytest.mark.torch

MakeFolder = Callable[..., Path]
TEMPLATES = [
    "qwen3",
    "qwen3_5_think",
    "qwen3_instruct_2507",
    "qwen3_training",
    "qwen2_5",
    "llama3",
    "llama3_1",
    "gemma",
    "gemma3",
    "phi3",
    "phi3_5",
    "cohere",
    "deepseekv3",
    "lfm2",
    "gptoss",
    "nemotron_3_nano",
]
PLAIN = [("user", "Is it two?"), ("assistant", "Two is\n two.")]
CHATS = [PLAIN, [*PLAIN, ("user", "é😀 'x' <b>"), ("assistant", " four ")], [("system", "Be brief."), *PLAIN]]
REFUSES_SYSTEM = {"gemma"}


def folder(make_folder: MakeFolder, name: str) -> Path:
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    template = (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()
    marks = set(re.findall("<[|\uff5c][^<>\\s']+?[|\uff5c]>|</?(?:start|end)_[a-z_]+>", template)) | {"<bos>", "<eos>"}
    special = sorted(marks)
    options: dict[str, Any] = {"plain": ["<think>", "</think>"], "bos": "<bos>", "eos": "<eos>", "post": "<bos> $A"}
    return make_folder(template, special=special, **options)


def messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendering_and_ids(make_folder: MakeFolder, name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    path = folder(make_folder, name)
    ours, theirs = load_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    for turns in CHATS:
        if turns[0][0] == "system" and name in REFUSES_SYSTEM:
            continue
        for prompt in (False, True):
            chat = messages(turns)
            text = ours.render(chat, prompt)
            assert text == theirs.apply_chat_template(chat, add_generation_prompt=prompt, tokenize=False)
            ids = theirs.apply_chat_template(chat, add_generation_prompt=prompt, return_dict=False)
            assert ours.encode(text, add_special_tokens=False).ids == ids
    assert ours.encode("two <bos> Paris", add_special_tokens=True).ids == theirs("two <bos> Paris")["input_ids"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_masks_hold_the_replies_alone(
    make_folder: MakeFolder,
    check: Callable[..., Judgement],
    supervised: Callable[..., list[str]],
    name: str,
) -> None:
    tokenizer = load_tokenizer(folder(make_folder, name))
    chats = [turns for turns in CHATS if not (turns[0][0] == "system" and name in REFUSES_SYSTEM)]
    result = check(tokenizer, *[{"messages": messages(turns)} for turns in chats])
    assert result.bad == []
    for row, turns in zip(result.rows, chats, strict=True):
        assert_replies(supervised, tokenizer, row, [text.strip() for role, text in turns if role == "assistant"])


def assert_replies(supervised: Callable[..., list[str]], tokenizer: Any, row: SftRow, replies: list[str]) -> None:
    spans = supervised(tokenizer, row)
    assert len(spans) == len(replies)
    for span, reply in zip(spans, replies, strict=True):
        before, _, after = span.partition(reply)
        assert after.strip() in tokenizer.special
        assert re.fullmatch(r"(\s|</?think>|<\|channel\|>final<\|message\|>)*", before), before
