"""The floor that a cold call is measured against: a plain PyTorch and PEFT loop that does the same optimizer steps.

Usage:
    python benchmarks/floor.py tokenize --model FOLDER --trace FILE --out ROWS
    python benchmarks/floor.py train --model FOLDER --rows ROWS [--adapter FILE] [--grad-accum 4] [--learning-rate 1e-4]

``train`` starts from rows that are tokenized already, judges nothing, resumes nothing and commits nothing. It prints
one JSON object: seconds of each phase, one loss a step, tokens, peak memory in bytes, threads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, list[int]]
IGNORED = -100
END_OF_TURN = "<|im_end|>"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def tokenize(model: Path, trace: Path) -> list[Row]:
    """Rows of ``messages`` through transformers' own rendering of the chat template.

    Supervised is what the assistant says and its end-of-turn token, not the newline after it. ``labels`` has the
    length of ``input_ids``, with -100 where nothing is supervised.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = []
    for line in trace.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                start = len(tokenizer.apply_chat_template(messages[:index], tokenize=False, add_generation_prompt=True))
                spans.append((start, start + len(message["content"]) + len(END_OF_TURN)))
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        labels = [
            token if any(start <= begin and end <= stop for start, stop in spans) else IGNORED
            for token, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]
        rows.append({"input_ids": encoded["input_ids"], "labels": labels})
    return rows


def load(model: Path, adapter: Path | None, seed: int = 0) -> Any:
    """The base model in fp32 with a LoRA adapter of rank 8 and alpha 16 on the attention projections.

    ``adapter`` is a PEFT weights file whose A matrices the adapter starts from; B starts at zero as ever. Without it
    A is drawn from ``seed``.
    """
    import torch
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(seed)
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
    peft = get_peft_model(base, config)
    if adapter is not None:
        weights = {name: value for name, value in load_file(adapter).items() if "lora_A" in name}
        if not weights:
            sys.exit(f"{adapter} has no A matrix of a LoRA adapter")
        set_peft_model_state_dict(peft, weights)
    return peft.train()


def loss_sum(model: Any, row: Row) -> tuple[Any, int]:
    """Sum of the cross-entropy (nats) over a row's supervised tokens, and their number."""
    import torch
    from torch.nn.functional import cross_entropy

    ids = torch.tensor([row["input_ids"]])
    labels = torch.tensor(row["labels"][1:])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"), int((labels != IGNORED).sum())


def train(model: Any, optimizer: Any, rows: Sequence[Row], grad_accum: int) -> list[float]:
    """One optimizer step for each group of ``grad_accum`` rows, in file order; the loss is the group's token mean."""
    import torch

    losses = []
    for first in range(0, len(rows), grad_accum):
        group = rows[first : first + grad_accum]
        tokens = sum(label != IGNORED for row in group for label in row["labels"][1:])
        total = 0.0
        for row in group:
            loss, _ = loss_sum(model, row)
            (loss / tokens).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total / tokens)
    return losses


def adamw(model: Any, learning_rate: float) -> Any:
    """AdamW with a constant learning rate and no weight decay over the adapter."""
    import torch

    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=learning_rate, weight_decay=0.0)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the whole loop, phase by phase."""
    clock = [time.perf_counter()]
    phases: dict[str, float] = {}

    def done(phase: str) -> None:
        clock.append(time.perf_counter())
        phases[phase] = clock[-1] - clock[-2]

    import peft  # noqa: F401
    import torch
    import transformers

    _ = transformers.AutoModelForCausalLM  # transformers imports it on first use
    done("imports")
    model = load(args.model, args.adapter)
    optimizer = adamw(model, args.learning_rate)
    done("model")
    rows = json.loads(args.rows.read_text())
    done("data")
    losses = train(model, optimizer, rows, args.grad_accum)
    done("steps")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        torch.save(optimizer.state_dict(), Path(folder) / "optimizer.pt")
        done("save")
    return {
        "timings_sec": phases,
        "losses": losses,
        "tokens": sum(len(row["input_ids"]) for row in rows),
        "supervised_tokens": sum(label != IGNORED for row in rows for label in row["labels"][1:]),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "threads": torch.get_num_threads(),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("tokenize", "train"):
        command = commands.add_parser(name)
        command.add_argument("--model", type=Path, required=True)
        if name == "tokenize":
            command.add_argument("--trace", type=Path, required=True)
            command.add_argument("--out", type=Path, required=True)
        else:
            command.add_argument("--rows", type=Path, required=True)
            command.add_argument("--adapter", type=Path)
            command.add_argument("--grad-accum", type=int, default=4)
            command.add_argument("--learning-rate", type=float, default=1e-4)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.command == "tokenize":
        args.out.write_text(json.dumps(tokenize(args.model, args.trace)))
        return
    print(json.dumps(measure(args)), flush=True)
    # Freeing torch's memory piece by piece takes seconds and saves nothing.
    os._exit(0)


if __name__ == "__main__":
    main()
