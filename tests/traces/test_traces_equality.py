"""Rendering and ids equal those of transformers, masks those of TRL, with templates that models are shipped with."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepctl.traces.render.tokenizer import load_tokenizer
from stepctl.traces.rows import DpoRow, Judgement, KtoRow, SftRow

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


REASONED = ("assistant", "<think>\nIt is.\n</think>\n\nTwo.")
PROMPTS = [
    [("user", "Is it two?")],
    [("system", "Be brief."), ("user", "Is it two?")],
    [("user", "Is it?"), REASONED, ("user", "é😀 'x' <b>")],
]
ANSWERS = [
    ([("assistant", "Two is\n two.")], [("assistant", " four ")]),
    ([("assistant", "<b>"), ("user", "And?"), ("assistant", "Two.")], [("assistant", "four")]),
    ([REASONED], [("assistant", "four")]),
]
LOSES_REASONING = {"deepseekv3"}


def pairs(name: str) -> list[dict[str, Any]]:
    return [
        {"prompt": messages(prompt), "chosen": messages(chosen), "rejected": messages(rejected)}
        for prompt in PROMPTS
        for chosen, rejected in ANSWERS
        if not (prompt[0][0] == "system" and name in REFUSES_SYSTEM)
        and not (REASONED in chosen and name in LOSES_REASONING)
    ]


STRINGS = [
    {"prompt": "Answer:", "chosen": " Paris", "rejected": " 44"},
    {"prompt": "Answer: ", "chosen": "Paris", "rejected": "44"},
    {"prompt": "é", "chosen": "😀", "rejected": "two\n"},
]


def of_trl(trainer: str, rows: list[dict[str, Any]], path: Path) -> list[dict[str, list[int]]]:
    """``prompt_ids`` and the ids of the completions, as TRL's trainer prepares a data set."""
    import trl
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    args = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    prepare = getattr(trl, trainer)._prepare_dataset
    this = SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False)
    return list(prepare(this, Dataset.from_list(rows), tokenizer, args, "eval"))


def assert_split(ids: list[int], labels: list[int], prompt: list[int], completion: list[int]) -> None:
    """Supervision begins where TRL's completion does; what is not supervised after it TRL has at its end."""
    assert ids == (prompt + completion)[: len(ids)]
    assert labels[: len(prompt)] == [-100] * len(prompt)
    assert labels[len(prompt)] == completion[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_preferences_are_split_where_trl_splits_them(
    make_folder: MakeFolder, check: Callable[..., Judgement], name: str
) -> None:
    path = folder(make_folder, name)
    tokenizer = load_tokenizer(path)
    for rows in (pairs(name), STRINGS):
        result = check(tokenizer, *rows, method="dpo")
        assert result.bad == []
        for row, theirs in zip(result.rows, of_trl("DPOTrainer", rows, path), strict=True):
            assert isinstance(row, DpoRow)
            for side, tokens in (("chosen_ids", row.chosen), ("rejected_ids", row.rejected)):
                assert_split(tokens.input_ids, tokens.labels, theirs["prompt_ids"], theirs[side])
                assert len(tokens.input_ids) == len(theirs["prompt_ids"]) + len(theirs[side])


@pytest.mark.parametrize("name", TEMPLATES)
def test_feedback_is_split_where_trl_splits_it(
    make_folder: MakeFolder, check: Callable[..., Judgement], name: str
) -> None:
    path = folder(make_folder, name)
    tokenizer = load_tokenizer(path)
    one_reply = [row for row in pairs(name) if len(row["chosen"]) == 1]
    for rows in (one_reply, STRINGS):
        labelled = [
            {"prompt": row["prompt"], "completion": row["chosen"], "label": n % 2} for n, row in enumerate(rows)
        ]
        result = check(tokenizer, *labelled, method="kto")
        assert result.bad == []
        for row, theirs in zip(result.rows, of_trl("KTOTrainer", labelled, path), strict=True):
            assert isinstance(row, KtoRow)
            assert_split(row.input_ids, row.labels, theirs["prompt_ids"], theirs["completion_ids"])
            left = tokenizer.decode(theirs["completion_ids"][len(row.input_ids) - len(theirs["prompt_ids"]) :])
            assert left.strip() in ("", tokenizer.eos_token)
