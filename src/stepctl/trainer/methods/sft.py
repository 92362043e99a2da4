"""Supervised fine-tuning: the mean of ``-log p`` over the supervised tokens of the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import SFTConfig, SFTTrainer

from stepctl.config.model import TrainSettings
from stepctl.traces.rows import Row
from stepctl.trainer.model import Trainable
from stepctl.trainer.scoring import nll


class Sft:
    """A :class:`~stepctl.trainer.methods.Method`."""

    trainer: type[Any] = SFTTrainer
    config: type[Any] = SFTConfig

    def __init__(self, trainable: Trainable) -> None:
        self._trainable = trainable
        self.options: dict[str, Any] = {
            "packing": False,
            "completion_only_loss": False,
            "assistant_only_loss": False,
            "dataset_kwargs": {"skip_prepare_dataset": True},
        }

    def begin(self, group: Sequence[Row]) -> None:
        """Nothing depends on the group as a whole."""

    def loss(self, row: Row) -> torch.Tensor:
        """In nats, summed over the supervised tokens.

        TRL's own also scores entropy and accuracy over the vocabulary at every step.
        """
        (text,) = row.texts
        return nll(self._trainable.model, text, self._trainable.placement)

    def weight(self, row: Row) -> int:
        """Its supervised tokens."""
        return row.supervised


def make(trainable: Trainable, settings: TrainSettings) -> Sft:
    """The method for one job."""
    return Sft(trainable)
