"""Kahneman-Tversky optimization (Ethayarajh et al. 2024, equation 7): the mean over the rows of the group.

The whole group is one batch, as TRL's trainer would take it: the KL term too, whatever the micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from trl import KTOConfig, KTOTrainer

from stepctl.config.model import TrainSettings
from stepctl.traces.rows import KtoRow, Row, Tokens
from stepctl.trainer.model import Trainable
from stepctl.trainer.scoring import IGNORED, policy_logp, reference_logp


class Kto:
    """A :class:`~stepctl.trainer.methods.Method`."""

    trainer: type[Any] = KTOTrainer
    config: type[Any] = KTOConfig

    def __init__(self, trainable: Trainable, settings: TrainSettings) -> None:
        self._trainable, self._settings = trainable, settings
        self._kl: torch.Tensor | float = 0.0
        # TRL refuses a batch of one, since it computes the KL term within a batch; ours is computed over the group.
        self.options: dict[str, Any] = {
            "beta": settings.beta,
            "disable_dropout": False,
            "per_device_train_batch_size": 2,
        }

    def begin(self, group: Sequence[Row]) -> None:
        """Estimate the KL term from each row's prompt with the completion of the row before it, the first's the last's.

        ``max(0, mean of (p - r))``, without gradient. A group of one row has no other completion: 0.
        """
        rows = [row for row in group if isinstance(row, KtoRow)]
        self._kl = 0.0
        if len(rows) < 2:
            return
        with torch.no_grad():
            texts = [mismatched(row, rows[i - 1], self._settings.max_length) for i, row in enumerate(rows)]
            references = [reference_logp(self._trainable, text) for text in texts]
            was_training = self._trainable.model.training
            self._trainable.model.eval()
            try:
                ratios = [policy_logp(self._trainable, t) - r for t, r in zip(texts, references, strict=True)]
            finally:
                self._trainable.model.train(was_training)
            self._kl = torch.stack(ratios).mean().clamp(min=0)

    def loss(self, row: Row) -> torch.Tensor:
        """``w (1 - sigmoid(beta s (p - r - KL)))``, s 1 for a desirable completion and -1 for another."""
        assert isinstance(row, KtoRow)
        (text,) = row.texts
        reference = reference_logp(self._trainable, text)
        ratio = policy_logp(self._trainable, text) - reference
        settings = self._settings
        sign, weight = (1, settings.desirable_weight) if row.desirable else (-1, settings.undesirable_weight)
        return weight * (1 - torch.sigmoid(sign * settings.beta * (ratio - self._kl)))

    def weight(self, row: Row) -> int:
        """One row."""
        return 1


def mismatched(row: KtoRow, other: KtoRow, max_length: int) -> Tokens:
    """The prompt of ``row`` with the whole completion of ``other``, cut to ``max_length``."""
    prompt = row.input_ids[: _completion(row)]
    completion = [*other.input_ids[_completion(other) :], *other.rest]
    return Tokens(
        input_ids=[*prompt, *completion][:max_length],
        labels=[*[IGNORED] * len(prompt), *completion][:max_length],
    )


def _completion(row: KtoRow) -> int:
    """Where the completion begins: at its first supervised token."""
    return next(i for i, label in enumerate(row.labels) if label != IGNORED)


def make(trainable: Trainable, settings: TrainSettings) -> Kto:
    """The method for one job."""
    return Kto(trainable, settings)
