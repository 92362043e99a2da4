"""The training methods, one file each: which of TRL's trainers makes the steps, and what a row loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stepctl.config.model import TrainSettings
from stepctl.traces.rows import Row

if TYPE_CHECKING:
    import torch

    from stepctl.trainer.model import Trainable


class Method(Protocol):
    """A loss, for one job. The loss of a step is ``sum(loss(row)) / sum(weight(row))`` over its group of rows.

    ``trainer`` and ``config`` are TRL's classes; ``options`` what the config is told beside what all methods share.
    """

    trainer: type[Any]
    config: type[Any]
    options: dict[str, Any]

    def begin(self, group: Sequence[Row]) -> None:
        """Compute what depends on the whole group; its rows follow one by one."""

    def loss(self, row: Row) -> torch.Tensor:
        """What the row loses, a scalar with gradient while training; not divided by anything."""

    def weight(self, row: Row) -> int:
        """What the row counts in the group's mean."""


def load_method(name: str) -> None:
    """Import what a method needs, so that :func:`make_method` is quick."""
    _module(name)


def make_method(name: str, trainable: Trainable, settings: TrainSettings) -> Method:
    """The method ``name`` over what is trained."""
    made: Method = _module(name).make(trainable, settings)
    return made


def has_reference(name: str) -> bool:
    """Whether the method compares with a reference, which its checkpoints must then hold."""
    return name != "sft"


def texts_at_once(name: str) -> int:
    """How many texts a row has whose activations are kept until its backward."""
    return 2 if name == "dpo" else 1


def _module(name: str) -> Any:
    # Each imports a trainer of TRL's, which is slow: only the one that is used.
    if name == "sft":
        from stepctl.trainer.methods import sft

        return sft
    if name == "dpo":
        from stepctl.trainer.methods import dpo

        return dpo
    if name == "kto":
        from stepctl.trainer.methods import kto

        return kto
    raise ValueError(f"no training method {name!r}")
