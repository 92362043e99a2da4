"""Supervised fine-tuning by TRL's SFTTrainer: the loss, and the trainer that makes our steps and nothing else."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from stepctl.traces.rows import SftRow
from stepctl.trainer.device import Placement

RNG_RULE = "sha256(seed:step:micro-batch)/1"
IGNORED = -100


def random_seed(seed: int, step: int, micro_batch: int) -> int:
    """The seed of all that is random in a micro-batch: the same however rows are split over calls (RNG_RULE)."""
    digest = hashlib.sha256(f"{seed}:{step}:{micro_batch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def supervised_loss(model: Any, input_ids: torch.Tensor, labels: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Sum of ``-log p(label | tokens before it)`` over the supervised tokens of one example, in nats, fp32.

    Args:
        model: a causal language model, perhaps with an adapter.
        input_ids: (1, tokens).
        labels: (1, tokens), -100 where the token is not supervised.
        placement: bf16 is used through autocast.
    """
    targets = labels[0, 1:]
    positions = (targets != IGNORED).nonzero().squeeze(1)
    # The output layer is a large share of the work, and only the supervised positions need it.
    forward = inspect.signature(model.get_base_model().forward).parameters
    keep = {"logits_to_keep": positions} if "logits_to_keep" in forward else {}
    with torch.autocast(placement.device.type, dtype=torch.bfloat16, enabled=placement.precision == "bf16"):
        logits = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False, **keep).logits[
            0
        ]
    if not keep:
        logits = logits[positions]
    return torch.nn.functional.cross_entropy(logits.float(), targets[positions], reduction="sum")


class Group:
    """The optimizer step in the making: which rows, what it has lost so far."""

    def __init__(self, rows: Sequence[SftRow], size: int, from_step: int, seed: int) -> None:
        self._groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        self._from, self._seed = from_step, seed
        self._index = self._micro_batch = 0
        self._losses: list[torch.Tensor] = []

    def __len__(self) -> int:
        """Steps in all."""
        return len(self._groups)

    @property
    def step(self) -> int:
        """The absolute step that is being made."""
        return self._from + self._index + 1

    @property
    def tokens(self) -> int:
        return sum(len(row.input_ids) for row in self._groups[self._index])

    @property
    def supervised(self) -> int:
        return sum(row.supervised for row in self._groups[self._index])

    def begin_micro_batch(self) -> None:
        torch.manual_seed(random_seed(self._seed, self.step, self._micro_batch))
        self._micro_batch += 1

    def add(self, loss: torch.Tensor) -> None:
        """Add a micro-batch's share of the group's mean."""
        self._losses.append(loss.detach().double())

    def loss(self) -> float:
        """Token mean over the group, in nats."""
        return float(torch.stack(self._losses).sum())

    def end(self) -> None:
        """The step is made; the next one begins."""
        self._index, self._micro_batch = self._index + 1, 0
        self._losses.clear()


class StepTrainer(SFTTrainer):  # type: ignore[misc]
    """One pass over tokenized rows in file order, one row a micro-batch."""

    loss_is_scaled_for_ga = True

    def __init__(self, *, group: Group, placement: Placement, **of_trl: Any) -> None:
        self._group, self._placement = group, placement
        super().__init__(**of_trl)

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.train_dataset, sampler=SequentialSampler(self.train_dataset), collate_fn=self.data_collator
        )

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._group.begin_micro_batch()
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._group.add(loss)
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], **_: Any) -> torch.Tensor:
        """The micro-batch's share of the token mean over the whole group, so that a short group counts rightly.

        TRL's own also scores entropy and accuracy over the vocabulary at every step.
        """
        return supervised_loss(model, inputs["input_ids"], inputs["labels"], self._placement) / self._group.supervised


def collate(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A micro-batch of one example, (1, tokens) each: nothing is padded."""
    (example,) = examples
    return {name: torch.tensor([example[name]], dtype=torch.long) for name in ("input_ids", "labels")}


def configuration(placement: Placement, steps: int, grad_accum: int, folder: str) -> SFTConfig:
    """What TRL and transformers are told. Their defaults turn on bf16, gradient checkpointing, logs and saves."""
    config = SFTConfig(
        output_dir=folder,
        max_steps=steps,
        gradient_accumulation_steps=grad_accum,
        per_device_train_batch_size=1,
        use_cpu=placement.device.type == "cpu",
        # Precision is ours, around the forward: training and evaluation must not differ.
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        # The gradient is clipped where its norm is checked, before the step.
        max_grad_norm=0.0,
        max_length=None,
        packing=False,
        completion_only_loss=False,
        assistant_only_loss=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        average_tokens_across_devices=False,
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to="none",
        push_to_hub=False,
        disable_tqdm=True,
        log_level="error",
    )
    if placement.device.type == "cuda":
        # They would take the first GPU, and spread one model over all that they see.
        config._n_gpu = 1
        vars(config)["_setup_devices"] = placement.device
        torch.cuda.set_device(placement.device)
    return config


def dataset(rows: Sequence[SftRow]) -> Dataset:
    """The rows as a data set that lives in memory alone."""
    return Dataset.from_dict({"input_ids": [row.input_ids for row in rows], "labels": [row.labels for row in rows]})


def no_tokenizer() -> PreTrainedTokenizerFast:
    """SFTTrainer insists on a tokenizer; the rows come tokenized. It has no special token, so it changes no config."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"": 0}, unk_token="")))
