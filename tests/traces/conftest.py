"""Tiny byte-level tokenizers, written as a model's folder has them. No torch, no transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from stepctl.traces.judge import judge
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import Judgement, KtoRow, SftRow, Source, Tokens
from stepctl.traces.rules import Rules

CORPUS = ["What is two plus two? Two plus two is four. user assistant system Paris Answer: Paris"] * 4
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

MakeFolder = Callable[..., Path]
Judge = Callable[..., Judgement]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """A tokenizer's folder: ``make_folder(template, special=, plain=, bos=, eos=, post=, config=, trim=)``."""

    def make(
        template: str | None = CHATML,
        *,
        special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        plain: Sequence[str] = (),
        bos: str | None = None,
        eos: str = "<|im_end|>",
        post: str | None = None,
        trim: bool = False,
        config: dict[str, Any] | None = None,
        name: str = "model",
    ) -> Path:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        raw.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
        raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        raw.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
        chain: list[Any] = [processors.ByteLevel(trim_offsets=trim)]
        if post is not None:
            ids = [(token, raw.token_to_id(token)) for token in special]
            chain.append(processors.TemplateProcessing(single=post, special_tokens=ids))
        raw.post_processor = processors.Sequence(chain)
        folder = tmp_path / name
        folder.mkdir()
        raw.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, **(config or {})}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | ({"bos_token": bos} if bos else {})))
        if template is not None:
            (folder / "chat_template.jinja").write_text(template)
        return folder

    return make


@pytest.fixture
def chatml(make_folder: MakeFolder) -> TextTokenizer:
    return load_tokenizer(make_folder())


@pytest.fixture
def check() -> Judge:
    """``check(tokenizer, *rows, method=, ...)``, with rules: judge rows (objects, or lines as text) as one file."""

    def run(
        tokenizer: TextTokenizer,
        *rows: object,
        method: str = "sft",
        max_length: int = 1024,
        **rules: Any,
    ) -> Judgement:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        source = Source(name="trace.jsonl", data="\n".join(lines).encode())
        return judge([source], Rules(method=method, max_length=max_length, **rules), tokenizer)

    return run


@pytest.fixture
def supervised() -> Callable[[TextTokenizer, SftRow | KtoRow | Tokens], list[str]]:
    """The text of each run of labelled tokens."""

    def texts(tokenizer: TextTokenizer, row: SftRow | KtoRow | Tokens) -> list[str]:
        pairs = list(zip(row.input_ids, row.labels, strict=True))
        assert all(label in (-100, token) for token, label in pairs)
        runs = groupby(pairs, key=lambda pair: pair[1] != -100)
        return [tokenizer.decode([token for token, _ in run]) for labelled, run in runs if labelled]

    return texts


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    """``chat("user", "a", "assistant", "b")`` as a row."""

    def row(*parts: str) -> dict[str, Any]:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return {"messages": [{"role": role, "content": content} for role, content in pairs]}

    return row
