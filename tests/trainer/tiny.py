"""A tiny Llama made on the spot, jobs over it, and rows of tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stepctl.jobs.spec import JobSpec
from stepctl.lineage.records import Manifest
from stepctl.traces.rows import DpoRow, KtoRow, Row, SftRow, Tokens
from stepctl.trainer import environment
from stepctl.trainer.engine import Step
from stepctl.trainer.torch_engine import TorchEngine

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 300


def build_tiny(folder: Path, *, template: str | None = TEMPLATE, spread: float = 0.02) -> Path:
    """Save a two-layer Llama of random weights of that ``spread``, with a byte-level tokenizer, into ``folder``."""
    environment.prepare()
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(["What is two plus two? Two plus two is four. user assistant system"] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        max_position_embeddings=256,
        initializer_range=spread,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_rows(count: int, seed: int = 0, method: str = "sft") -> list[Any]:
    """Rows of unequal lengths; the first third of each is not supervised. KTO's are not all of one label."""
    draw = random.Random(seed)
    rows: list[Any] = []
    for line in range(1, count + 1):
        ids = [draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(5, 24))]
        prompt = max(1, len(ids) // 3)
        text = {"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]}
        place: dict[str, Any] = {"file": "t.jsonl", "line": line}
        if method == "dpo":
            other = [draw.randrange(3, VOCABULARY) for _ in range(draw.randrange(1, 12))]
            rejected = Tokens(input_ids=ids[:prompt] + other, labels=[-100] * prompt + other)
            rows.append(DpoRow(**place, chosen=Tokens(**text), rejected=rejected))
        elif method == "kto":
            rows.append(KtoRow(**place, **text, desirable=line % 3 != 2))
        else:
            rows.append(SftRow(**place, **text))
    return rows


@dataclass(frozen=True)
class Job:
    """A spec over the tiny model, and what tests do with it."""

    spec: JobSpec

    def but(self, *, lora: dict[str, Any] | None = None, **train: Any) -> Job:
        changed = msgspec.structs.replace(
            self.spec,
            lora=msgspec.structs.replace(self.spec.lora, **(lora or {})),
            train=msgspec.structs.replace(self.spec.train, **train),
        )
        return Job(changed)

    def by(self, method: str, origin: str | None = None) -> Job:
        """The same job with another method; ``origin`` says that its lineage began with an adapter."""
        identity = msgspec.structs.replace(self.spec.identity, method=method, origin=origin)
        return Job(msgspec.structs.replace(self.spec, identity=identity))

    def load(self) -> TorchEngine:
        engine = TorchEngine()
        engine.imports(self.spec.identity.method)
        engine.load(self.spec, None)
        return engine

    def manifest(self, step: int) -> Manifest:
        return Manifest(
            version=1,
            checkpoint=f"{step:08d}-run",
            lineage="main",
            parent="root",
            step=step,
            run="run",
            key=None,
            trace_sha256="",
            rows_done=0,
            rows_total=0,
            identity=self.spec.identity,
            settings={},
            versions={},
            exact=True,
            loss=None,
            created_at="",
            files=(),
        )

    def restored(self, folder: Path, step: int) -> TorchEngine:
        engine = self.load()
        engine.restore(folder, self.manifest(step))
        return engine


def run(
    engine: TorchEngine, rows: Sequence[Row], from_step: int = 0, until: Callable[[Step], bool] | None = None
) -> list[Step]:
    """Train ``rows`` and return the steps."""
    steps: list[Step] = []

    def on_step(step: Step) -> bool:
        steps.append(step)
        return until is None or until(step)

    engine.train(rows, from_step, on_step)
    return steps
