"""Direct preference optimization (Rafailov et al. 2023, equation 7): the mean over the pairs of the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import DPOConfig, DPOTrainer

from stepctl.config.model import TrainSettings
from stepctl.traces.rows import DpoRow, Row
from stepctl.trainer.model import Trainable
from stepctl.trainer.scoring import policy_logp, reference_logp


class Dpo:
    """A :class:`~stepctl.trainer.methods.Method`."""

    trainer: type[Any] = DPOTrainer
    config: type[Any] = DPOConfig

    def __init__(self, trainable: Trainable, beta: float) -> None:
        self._trainable, self._beta = trainable, beta
        self.options: dict[str, Any] = {"beta": beta, "disable_dropout": False}

    def begin(self, group: Sequence[Row]) -> None:
        """Nothing depends on the group as a whole."""

    def loss(self, row: Row) -> torch.Tensor:
        """``-log sigmoid(beta ((p - r)(chosen) - (p - r)(rejected)))``, p and r the summed log-probabilities.

        It is ln 2 where policy and reference are the same.
        """
        assert isinstance(row, DpoRow)
        references = [reference_logp(self._trainable, text) for text in (row.chosen, row.rejected)]
        policies = [policy_logp(self._trainable, text) for text in (row.chosen, row.rejected)]
        chosen, rejected = (p - r for p, r in zip(policies, references, strict=True))
        return -torch.nn.functional.logsigmoid(self._beta * (chosen - rejected))

    def weight(self, row: Row) -> int:
        """One pair."""
        return 1


def make(trainable: Trainable, settings: TrainSettings) -> Dpo:
    """The method for one job."""
    return Dpo(trainable, settings.beta)
