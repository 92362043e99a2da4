"""What ends a training before a step counts: values that are not finite, memory, rows that cannot be trained."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.tiny import VOCABULARY, Job, make_rows, run

from stepctl.base.errors import StepctlError
from stepctl.traces.rows import SftRow
from stepctl.trainer.engine import NonFinite, OutOfMemory, Step
from stepctl.trainer.torch_engine import TorchEngine

pytestmark = pytest.mark.torch


def failing(engine: TorchEngine, rows: list[SftRow]) -> tuple[NonFinite, list[Step]]:
    steps: list[Step] = []
    with pytest.raises(NonFinite) as caught:
        engine.train(rows, 0, lambda step: steps.append(step) is None)
    return caught.value, steps


def test_a_loss_that_is_not_finite_ends_before_the_step_is_told(job: Job, tmp_path: Path) -> None:
    job, rows = job.but(grad_accum=2), make_rows(8)
    engine = job.load()
    # One token's embedding is poisoned: the step that first meets it fails, those before are as good as ever.
    poison = next(t for t in rows[4].input_ids if not any(t in row.input_ids for row in rows[:4]))

    def embed(module: object, inputs: tuple[Any], output: Any) -> Any:
        return output.masked_fill((inputs[0] == poison).unsqueeze(-1), float("inf"))

    engine._ready()[1].model.get_input_embeddings().register_forward_hook(embed)
    error, steps = failing(engine, rows)
    assert (error.step, error.what, [s.step for s in steps]) == (3, "the loss", [1, 2])
    engine.save(tmp_path / "poisoned")
    plain = job.load()
    run(plain, rows[:4])
    plain.save(tmp_path / "plain")
    for path in (tmp_path / "plain").iterdir():
        assert (tmp_path / "poisoned" / path.name).read_bytes() == path.read_bytes()


def test_a_gradient_that_is_not_finite(job: Job, tmp_path: Path) -> None:
    engine = job.but(grad_accum=2).load()
    trainable = engine._ready()[1]
    before = {name: p.detach().clone() for name, p in trainable.parameters.items()}
    next(iter(trainable.parameters.values())).register_hook(lambda gradient: gradient * float("inf"))
    error, steps = failing(engine, make_rows(4))
    assert (error.step, error.what, steps) == (1, "the gradient", [])
    assert all(bool((p == before[name]).all()) for name, p in trainable.parameters.items())
    engine.save(tmp_path)  # the state before the step is whole


def test_a_weight_that_is_not_finite_is_never_saved(job: Job, tmp_path: Path) -> None:
    engine = job.load()
    trainable = engine._ready()[1]

    def poison(*_: object) -> None:
        next(iter(trainable.parameters.values())).data.view(-1)[0] = float("inf")

    trainable.optimizer.register_step_post_hook(poison)
    error, steps = failing(engine, make_rows(2))
    assert (error.step, error.what, steps) == (1, "a weight", [])
    with pytest.raises(StepctlError, match="not finite"):
        engine.save(tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no memory"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        "torch",
    ],
)
def test_running_out_of_memory_has_one_name(job: Job, error: Exception | str) -> None:
    import torch

    raised = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB") if isinstance(error, str) else error
    engine = job.load()

    def fail(module: object, inputs: object) -> None:
        raise raised

    engine._ready()[1].model.get_base_model().model.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemory):
        run(engine, make_rows(1))
    with pytest.raises(OutOfMemory):
        engine.evaluate(make_rows(1))


def test_memory_that_really_runs_out(job: Job) -> None:
    import torch

    from stepctl.trainer.device import memory_errors

    with pytest.raises(OutOfMemory), memory_errors():
        torch.empty(1 << 60, dtype=torch.uint8)


def test_another_error_keeps_its_name(job: Job) -> None:
    from stepctl.trainer.device import memory_errors

    with pytest.raises(RuntimeError, match="shapes"), memory_errors():
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("token", [VOCABULARY, -1])
def test_a_token_without_an_embedding_is_refused_by_line(job: Job, token: int) -> None:
    bad = SftRow(file="day.jsonl", line=12, input_ids=[5, token, 7], labels=[-100, token, 7])
    with pytest.raises(StepctlError, match=r"day.jsonl line 12 has a token .* \(it has 300\)"):
        run(job.load(), [*make_rows(2), bad])


@pytest.mark.parametrize("labels", [[-100, -100, -100], [5, -100, -100]])
def test_a_row_that_teaches_nothing_is_no_counted_step(job: Job, labels: list[int]) -> None:
    bad = SftRow(file="day.jsonl", line=3, input_ids=[5, 6, 7], labels=labels)
    with pytest.raises(StepctlError, match=r"day\.jsonl line 3 has no token to learn"):
        run(job.load(), [bad])


def test_evaluating_nothing_is_refused(job: Job) -> None:
    with pytest.raises(StepctlError, match="no held-out row"):
        job.load().evaluate([])


def test_nothing_is_left_behind(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, cwd = tmp_path / "scratch", tmp_path / "cwd"
    scratch.mkdir()
    cwd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(cwd)
    run(job.load(), make_rows(3))
    engine = job.load()
    next(iter(engine._ready()[1].parameters.values())).register_hook(lambda gradient: gradient * float("nan"))
    failing(engine, make_rows(3))
    assert [*scratch.iterdir(), *cwd.iterdir()] == []


def test_training_says_nothing_on_stdout(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    run(job.load(), make_rows(3))
    assert capfd.readouterr().out == ""
