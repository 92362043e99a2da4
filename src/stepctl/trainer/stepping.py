"""One of TRL's trainers, told to make our steps and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import DataLoader, SequentialSampler
from transformers import PreTrainedTokenizerFast

from stepctl.traces.rows import Row
from stepctl.trainer.device import Placement
from stepctl.trainer.methods import Method

RNG_RULE = "sha256(seed:step:micro-batch)/1"


def random_seed(seed: int, step: int, micro_batch: int) -> int:
    """The seed of all that is random in a micro-batch: the same however rows are split over calls (RNG_RULE)."""
    digest = hashlib.sha256(f"{seed}:{step}:{micro_batch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Group:
    """The optimizer step in the making: which rows, what it has lost so far."""

    def __init__(self, rows: Sequence[Row], size: int, from_step: int, seed: int, method: Method) -> None:
        self._groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        self._from, self._seed, self._method = from_step, seed, method
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
        return sum(row.tokens for row in self._groups[self._index])

    @property
    def supervised(self) -> int:
        return sum(row.supervised for row in self._groups[self._index])

    def share(self) -> torch.Tensor:
        """The next row's share of the group's mean, so that a short group counts rightly; with gradient."""
        rows = self._groups[self._index]
        if self._micro_batch == 0:
            self._method.begin(rows)
            self._weight = sum(map(self._method.weight, rows))
        row = rows[self._micro_batch]
        torch.manual_seed(random_seed(self._seed, self.step, self._micro_batch))
        self._micro_batch += 1
        share = self._method.loss(row) / self._weight
        self._losses.append(share.detach().double())
        return share

    def loss(self) -> float:
        """Mean over the group."""
        return float(torch.stack(self._losses).sum())

    def end(self) -> None:
        """The step is made; the next one begins."""
        self._index, self._micro_batch = self._index + 1, 0
        self._losses.clear()


def make_trainer(method: Method, group: Group, **of_trl: Any) -> Any:
    """The method's trainer over ``group``: one pass in file order, one row a micro-batch, the loss ours.

    TRL gives a preference trainer a copy of the adapter, as it is now, for a reference. That is not the reference
    where the adapter was trained before, and a second trainer over the same model would fail on it: it is removed.
    """

    class StepTrainer(method.trainer):  # type: ignore[misc,name-defined]
        loss_is_scaled_for_ga = True

        def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
            return dataset

        def get_train_dataloader(self) -> DataLoader:
            sampler = SequentialSampler(self.train_dataset)
            return DataLoader(self.train_dataset, sampler=sampler, collate_fn=self.data_collator)

        def compute_loss(self, *_: Any, **__: Any) -> torch.Tensor:
            return group.share()

    trainer = StepTrainer(**of_trl)
    model = of_trl["model"]
    for name in [name for name in model.peft_config if name != "default"]:
        model.delete_adapter(name)
    return trainer


def configuration(method: Method, placement: Placement, steps: int, grad_accum: int, folder: str) -> Any:
    """What TRL and transformers are told. Their defaults turn on bf16, gradient checkpointing, logs and saves."""
    shared: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": steps,
        "gradient_accumulation_steps": grad_accum,
        "per_device_train_batch_size": 1,
        "use_cpu": placement.device.type == "cpu",
        # Precision is ours, around the forward: training and evaluation must not differ.
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        # The gradient is clipped where its norm is checked, before the step.
        "max_grad_norm": 0.0,
        "max_length": None,
        "remove_unused_columns": False,
        "average_tokens_across_devices": False,
        "eval_strategy": "no",
        "save_strategy": "no",
        "logging_strategy": "no",
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "push_to_hub": False,
        "disable_tqdm": True,
        "log_level": "error",
    }
    config = method.config(**{**shared, **method.options})
    if placement.device.type == "cuda":
        # They would take the first GPU, and spread one model over all that they see.
        config._n_gpu = 1
        vars(config)["_setup_devices"] = placement.device
        torch.cuda.set_device(placement.device)
    return config


def dataset(rows: int) -> Dataset:
    """What TRL is shown in place of the rows: their numbers. They themselves never enter a data set."""
    return Dataset.from_dict({"row": list(range(rows))})


def collate(examples: list[dict[str, int]]) -> dict[str, torch.Tensor]:
    """A micro-batch of one row's number."""
    (example,) = examples
    return {"row": torch.tensor([example["row"]])}


def no_tokenizer() -> PreTrainedTokenizerFast:
    """TRL insists on a tokenizer; the rows come tokenized. It has no special token that could end up in a config."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"": 0}, unk_token="")))
