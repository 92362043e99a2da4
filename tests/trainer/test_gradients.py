"""The gradient of each method against plain formulas in float64, at several shapes of the group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.trainer.tiny import Job, make_rows, run

from stepctl.traces.rows import KtoRow, Row, Tokens
from stepctl.trainer.torch_engine import TorchEngine

pytestmark = pytest.mark.torch

TOLERANCE = 2e-4


def logp(model: Any, input_ids: list[int], labels: list[int]) -> Any:
    """Summed over all labelled tokens, from all logits."""
    import torch

    log_p = model(input_ids=torch.tensor([input_ids])).logits[0].log_softmax(-1)
    picked = [log_p[at - 1, labels[at]] for at in range(1, len(labels)) if labels[at] != -100]
    return torch.stack(picked).sum()


def expected(model: Any, frozen: Any, rows: Sequence[Row], method: str, beta: float) -> Any:
    """The loss of a whole group at once; ``frozen`` is the reference."""
    import torch

    if method == "sft":
        total = sum(logp(model, row.input_ids, row.labels) for row in rows)
        return -total / sum(row.supervised for row in rows)

    def ratio(text: Any) -> Any:
        with torch.no_grad():
            held = logp(frozen, text.input_ids, text.labels)
        return logp(model, text.input_ids, text.labels) - held

    if method == "dpo":
        margins = [ratio(row.chosen) - ratio(row.rejected) for row in rows]
        return torch.stack([-(1 / (1 + (-beta * m).exp())).log() for m in margins]).mean()
    kl = torch.zeros((), dtype=torch.float64)
    if len(rows) > 1:
        with torch.no_grad():
            kl = torch.stack([ratio(swapped(a, b)) for a, b in zip(rows, [rows[-1], *rows[:-1]], strict=True)]).mean()
            kl = kl.clamp(min=0)
    losses = [1 - 1 / (1 + (-beta * (1 if row.desirable else -1) * (ratio(row) - kl)).exp()) for row in rows]
    return torch.stack(losses).mean()


def swapped(row: KtoRow, other: KtoRow) -> Tokens:
    """The prompt of ``row``, the completion of ``other``."""
    prompt = [i for i, label in zip(row.input_ids, row.labels, strict=True) if label == -100]
    completion = [label for label in other.labels if label != -100]
    return Tokens(input_ids=prompt + completion, labels=[-100] * len(prompt) + completion)


def warm(job: Job, folder: Path, method: str) -> TorchEngine:
    """An engine whose policy is not its reference, in a place where KTO's KL is not 0."""
    if not folder.exists():
        sft = job.by("sft").load()
        run(sft, make_rows(6, seed=50))
        sft.save(folder)
    engine = job.by(method).load()
    engine.init_from(folder)
    trainable = engine._ready()[1]
    if trainable.reference is not None:
        trainable.reference = {name: tensor * 0.7 for name, tensor in trainable.reference.items()}
    return engine


def gradients(engine: TorchEngine, rows: Sequence[Row]) -> tuple[float, dict[str, Any]]:
    """Loss and gradient of the last step, as the optimizer gets it."""
    trainable, found = engine._ready()[1], {}

    def look(*_: object) -> None:
        found.update({name: p.grad.clone() for name, p in trainable.parameters.items()})

    handle = trainable.optimizer.register_step_pre_hook(look)
    *_, step = run(engine, rows, trainable.step)
    handle.remove()
    return step.loss, found


def frozen_copy(engine: TorchEngine) -> tuple[Any, Any, dict[str, Any]]:
    """Policy and reference in float64, and the policy's parameters by name."""
    import copy

    import torch

    trainable = engine._ready()[1]
    policy, held = copy.deepcopy(trainable.model).double(), copy.deepcopy(trainable.model).double()
    by_name = {n.replace(".default", ""): p for n, p in policy.named_parameters() if p.requires_grad}
    if trainable.reference is not None:
        with torch.no_grad():
            for name, parameter in held.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(trainable.reference[name.replace(".default", "")])
    return policy.eval(), held.eval(), by_name


def check(
    engine: TorchEngine,
    rows: Sequence[Row],
    method: str,
    beta: float,
    made: tuple[float, dict[str, Any]] | None = None,
) -> None:
    """Hold the step that the engine makes of ``rows``, or that was ``made``, against the formula."""
    policy, held, by_name = frozen_copy(engine)
    loss = expected(policy, held, rows, method, beta)
    loss.backward()
    ours, found = made or gradients(engine, rows)
    assert ours == pytest.approx(float(loss), rel=1e-5)
    assert found.keys() == by_name.keys()
    for name, gradient in found.items():
        wanted = by_name[name].grad
        assert float((gradient.double() - wanted).norm()) <= TOLERANCE * float(wanted.norm()), name


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_the_gradient_of_a_group_is_that_of_its_formula(job: Job, tmp_path: Path, method: str, size: int) -> None:
    job = job.but(grad_accum=size, max_grad_norm=1e6, beta=0.3)
    check(warm(job, tmp_path / "warm", method), make_rows(size, seed=size, method=method), method, 0.3)


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_a_short_last_group_counts_its_own_rows_alone(job: Job, tmp_path: Path, method: str) -> None:
    job = job.but(grad_accum=4, max_grad_norm=1e6, beta=0.3)
    rows = make_rows(7, seed=8, method=method)
    made = gradients(warm(job, tmp_path / "warm", method), rows)
    engine = warm(job, tmp_path / "warm", method)
    run(engine, rows[:4])
    check(engine, rows[4:], method, 0.3, made)


@pytest.mark.parametrize("desirable", [True, False])
def test_kto_with_one_label_alone(job: Job, tmp_path: Path, desirable: bool) -> None:
    job = job.but(grad_accum=3, max_grad_norm=1e6, beta=0.3)
    rows = [msgspec.structs.replace(row, desirable=desirable) for row in make_rows(3, seed=4, method="kto")]
    check(warm(job, tmp_path / "warm", "kto"), rows, "kto", 0.3)


def test_the_kl_term_of_these_tests_is_not_zero(job: Job, tmp_path: Path) -> None:
    """Else they would prove nothing of it."""
    engine = warm(job.but(grad_accum=3), tmp_path / "warm", "kto")
    positive = 0
    for size in (2, 3, 5):
        method = engine._ready()[2]
        method.begin(make_rows(size, seed=size, method="kto"))
        positive += float(method._kl) > 1e-3
    assert positive >= 2
