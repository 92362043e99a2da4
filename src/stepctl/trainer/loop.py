"""The training loop and the held-out loss: what happens around one optimizer step, and in which order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, TrainerCallback

from stepctl.base.errors import StepctlError
from stepctl.config.model import TrainSettings
from stepctl.traces.rows import KtoRow, Row
from stepctl.trainer.device import Placement, peak_memory_bytes
from stepctl.trainer.engine import NonFinite, Step
from stepctl.trainer.methods import Method
from stepctl.trainer.model import Trainable, vocabulary
from stepctl.trainer.stepping import Group, collate, configuration, dataset, make_trainer, no_tokenizer


class _Steps(TrainerCallback):  # type: ignore[misc]
    """Clips, checks and reports each step. An exception here ends the training before the step is reported."""

    def __init__(
        self, trainable: Trainable, group: Group, settings: TrainSettings, on_step: Callable[[Step], bool]
    ) -> None:
        self._trainable, self._group, self._settings, self._on_step = trainable, group, settings, on_step
        self._loss = self._norm = 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loss = self._group.loss()
        if not _finite(self._loss):
            raise NonFinite(self._group.step, "the loss")
        parameters = list(self._trainable.parameters.values())
        self._norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm))
        if not _finite(self._norm):
            raise NonFinite(self._group.step, "the gradient")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainable, group = self._trainable, self._group
        with torch.no_grad():
            device = trainable.placement.device
            finite = torch.stack([torch.isfinite(p).all().to(device) for p in trainable.parameters.values()]).all()
        if not bool(finite):
            trainable.spoiled = True
            raise NonFinite(group.step, "a weight")
        trainable.step = group.step
        step = Step(
            step=group.step,
            loss=self._loss,
            learning_rate=float(trainable.optimizer.param_groups[0]["lr"]),
            grad_norm=self._norm,
            tokens=group.tokens,
            supervised_tokens=group.supervised,
            peak_memory_bytes=peak_memory_bytes(trainable.placement.device),
        )
        group.end()
        if not self._on_step(step):
            control.should_training_stop = True


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


def train(
    trainable: Trainable,
    method: Method,
    rows: Sequence[Row],
    settings: TrainSettings,
    on_step: Callable[[Step], bool],
) -> None:
    """Make ceil(len(rows) / grad_accum) steps in file order, from the step that ``trainable`` is at.

    Raises:
        StepctlError: a row cannot be trained with this model.
        NonFinite: before anything of the step is reported.
    """
    check_rows(trainable.model, rows)
    group = Group(rows, settings.grad_accum, trainable.step, settings.seed, method)
    if not len(group):
        return
    with tempfile.TemporaryDirectory(prefix="stepctl-") as folder, _unpatched(trainable.model):
        trainer = make_trainer(
            method,
            group,
            model=trainable.model,
            args=configuration(method, trainable.placement, len(group), settings.grad_accum, folder),
            train_dataset=dataset(len(rows)),
            data_collator=collate,
            processing_class=no_tokenizer(),
            callbacks=[_Steps(trainable, group, settings, on_step)],
            optimizers=(trainable.optimizer, LambdaLR(trainable.optimizer, lambda _: 1.0)),
        )
        trainer.remove_callback(PrinterCallback)
        _check_alone(trainer, trainable.placement)
        trainer.train()


def check_rows(model: Any, rows: Sequence[Row]) -> None:
    """Refuse rows that the model would fail on, or that would make a step of nothing.

    Raises:
        StepctlError: a token has no embedding, or no token is supervised; the row is named.
    """
    size = vocabulary(model)
    for row, text in ((each, text) for each in rows for text in each.texts):
        read = [*text.input_ids, *row.rest] if isinstance(row, KtoRow) else text.input_ids
        if max(read, default=0) >= size or min(read, default=0) < 0:
            raise StepctlError(
                f"{row.file} line {row.line} has a token that the model has no embedding for (it has {size})",
                next="the tokenizer and the model do not belong together; check --model",
                code="vocabulary",
            )
        if text.supervised == 0 or text.labels[0] != -100:
            raise StepctlError(f"{row.file} line {row.line} has no token to learn", code="nothing_supervised")


def _check_alone(trainer: Any, placement: Placement) -> None:
    device, processes = next(trainer.model.parameters()).device, trainer.accelerator.num_processes
    if processes != 1 or trainer.args.n_gpu > 1 or device != placement.device:
        raise StepctlError(
            f"the trainer went to {device} with {processes} processes, not to {placement.device}",
            safe="nothing was trained",
            code="placement",
        )


@contextmanager
def _unpatched(model: Any) -> Iterator[None]:
    """Undo what TRL and accelerate put over forwards and into configs: the model's next use is as its first."""
    base = model.get_base_model()
    before = [(module, vars(module).get("forward")) for module in (model, base)]
    # TRL gives the model the padding of its tokenizer, and the one that it is shown has none.
    configs = (base.config.get_text_config(), getattr(base, "generation_config", None))
    names = ("pad_token_id", "use_cache")
    kept = [(config, name, getattr(config, name)) for config in configs for name in names if hasattr(config, name)]
    try:
        yield
    finally:
        for config, name, value in kept:
            setattr(config, name, value)
        for module, forward in before:
            vars(module).pop("forward", None)
            if forward is not None:
                vars(module)["forward"] = forward
        for parameter in model.parameters():
            parameter.grad = None


def evaluate(trainable: Trainable, method: Method, rows: Sequence[Row], settings: TrainSettings) -> float:
    """The loss of ``rows`` as one mean over all of them, groups of G as in training, without dropout. Changes nothing.

    Raises:
        StepctlError: there are no rows, or one cannot be scored with this model.
    """
    check_rows(trainable.model, rows)
    if not rows:
        raise StepctlError("there is no held-out row", code="nothing_supervised")
    model, total = trainable.model, 0.0
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for start in range(0, len(rows), settings.grad_accum):
                group = rows[start : start + settings.grad_accum]
                method.begin(group)
                total += sum(float(method.loss(row)) for row in group)
    finally:
        model.train(was_training)
    return total / sum(map(method.weight, rows))
