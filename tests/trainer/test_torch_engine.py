"""One job after another through the real engine: exact splits, fresh processes, settings that take effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainer.tiny import Job, make_rows, run

from stepctl.base.errors import StepctlError
from stepctl.base.files import sha256_file
from stepctl.trainer.engine import Step

pytestmark = pytest.mark.torch

EXACT = ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "trainer_state.json")


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir())}


def saved(job: Job, folder: Path, *pieces: int) -> list[Step]:
    """Train the first rows in ``pieces``, each in an engine of its own that restores the one before."""
    rows, steps, at = make_rows(sum(pieces), method=job.spec.identity.method), [], 0
    engine = job.load()
    for index, piece in enumerate(pieces):
        if index:
            engine = job.restored(folder, len(steps))
        steps += run(engine, rows[at : at + piece], len(steps))
        at += piece
        engine.save(folder)
    return steps


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_sixteen_rows_are_eight_and_eight_bit_for_bit(job: Job, tmp_path: Path, dropout: float, method: str) -> None:
    job = job.by(method).but(lora={"dropout": dropout}, weight_decay=0.01, grad_accum=4)
    whole, parts = saved(job, tmp_path / "whole", 16), saved(job, tmp_path / "parts", 8, 8)
    assert [s.step for s in whole] == [1, 2, 3, 4]
    assert [(s.loss, s.grad_norm) for s in whole] == [(s.loss, s.grad_norm) for s in parts]
    assert digests(tmp_path / "whole") == digests(tmp_path / "parts")
    assert sorted(digests(tmp_path / "whole")) == sorted(EXACT)


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_dropout_is_really_there(job: Job, tmp_path: Path, method: str) -> None:
    job, rows = job.by(method), make_rows(4, method=method)
    plain, dropped = (run(job.but(lora={"dropout": d}, grad_accum=1).load(), rows) for d in (0.0, 0.5))
    # B starts at zero, so the first loss is the base model's; the gradient already goes through the dropout.
    assert plain[0].loss == dropped[0].loss
    assert plain[0].grad_norm != dropped[0].grad_norm


def test_an_engine_starts_anew_whatever_trained_before_in_the_process(job: Job, tmp_path: Path) -> None:
    first = saved(job, tmp_path / "a", 4)
    again = saved(job, tmp_path / "b", 4)
    assert (first[0].step, first[0].loss) == (again[0].step, again[0].loss)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_one_engine_loaded_again_starts_anew(job: Job, tmp_path: Path) -> None:
    engine = job.load()
    before = run(engine, make_rows(4))
    engine.load(job.spec, None)
    assert [s.loss for s in run(engine, make_rows(4))] == [s.loss for s in before]


FRESH = """
import sys, msgspec
from pathlib import Path
from stepctl.jobs.spec import decode_job
from stepctl.traces.rows import DpoRow, KtoRow, SftRow
from stepctl.trainer.torch_engine import TorchEngine
heavy = {"torch", "transformers", "trl", "peft", "datasets", "huggingface_hub"}
assert not heavy & set(sys.modules), "importing the engine is not light"
spec = decode_job(Path(sys.argv[1]).read_bytes())
kind = {"sft": SftRow, "dpo": DpoRow, "kto": KtoRow}[spec.identity.method]
rows = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=list[kind])
engine = TorchEngine()
engine.imports(spec.identity.method)
import huggingface_hub, huggingface_hub.utils._telemetry as telemetry, torch, trl.trainer.base_trainer as base
torch.set_num_threads(1)
asked = []
def ask(*args, **kwargs):
    asked.append(telemetry.constants.HF_HUB_DISABLE_TELEMETRY)
    return real(*args, **kwargs)
real, base.send_telemetry = base.send_telemetry, ask
def sent(*args, **kwargs):
    raise SystemExit("telemetry was sent")
telemetry._start_telemetry_thread = sent
engine.load(spec, None)
engine.train(rows, 0, lambda step: True)
engine.save(Path(sys.argv[3]))
assert asked == [True], asked
assert telemetry._TELEMETRY_QUEUE.empty()
"""


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_fresh_processes_agree_send_nothing_print_nothing_and_leave_nothing(
    job: Job, tmp_path: Path, method: str
) -> None:
    import msgspec

    (tmp_path / "job.json").write_bytes(msgspec.json.encode(job.by(method).but(lora={"dropout": 0.1}).spec))
    (tmp_path / "rows.json").write_bytes(msgspec.json.encode(make_rows(5, method=method)))
    inside, cwd = tmp_path / "home", tmp_path / "cwd"
    cwd.mkdir()
    inside.mkdir()
    # No CI and no telemetry switch from outside: what is off must be off by our own doing.
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")}
    src = str(Path(sys.modules["stepctl"].__file__ or "").parents[1])
    children = []
    for name in ("a", "b"):
        home = {name: str(inside) for name in ("HOME", "HF_HOME", "TMPDIR", "XDG_CACHE_HOME")}
        env = {**keep, **home, "PYTHONPATH": src, "PYTHONHASHSEED": "1" if name == "a" else "2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", FRESH, tmp_path / "job.json", tmp_path / "rows.json", tmp_path / name]
        children.append(subprocess.Popen(command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err.decode()[-2000:]
        assert out == b""
        assert b"%|" not in err
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert list(cwd.iterdir()) == []
    assert [p for p in inside.rglob("*") if p.is_file()] == []


def test_every_step_has_its_loss_and_numbers(job: Job) -> None:
    rows = make_rows(5)
    steps = run(job.but(grad_accum=2).load(), rows)
    assert [s.step for s in steps] == [1, 2, 3]
    assert all(isinstance(s.loss, float) and 3 < s.loss < 9 for s in steps)
    assert len({s.loss for s in steps}) == 3
    groups = [rows[0:2], rows[2:4], rows[4:]]
    assert [s.tokens for s in steps] == [sum(len(r.input_ids) for r in g) for g in groups]
    assert [s.supervised_tokens for s in steps] == [sum(r.supervised for r in g) for g in groups]
    assert all(s.learning_rate == 1e-2 and s.grad_norm > 0 and s.peak_memory_bytes > 1 << 20 for s in steps)


def test_on_step_ends_the_loop_and_what_is_saved_then_is_that_step(job: Job, tmp_path: Path) -> None:
    job, rows = job.but(grad_accum=2), make_rows(8)
    engine = job.load()
    steps = run(engine, rows, until=lambda step: step.step < 2)
    assert [s.step for s in steps] == [1, 2]
    engine.save(tmp_path / "stopped")
    saved(job, tmp_path / "four", 4)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "four")


def test_a_checkpoint_saved_on_the_way_is_the_one_of_its_step(job: Job, tmp_path: Path) -> None:
    job, engine = job.but(grad_accum=2), None
    engine = job.load()

    def on_step(step: Step) -> bool:
        engine.save(tmp_path / str(step.step))
        return True

    engine.train(make_rows(8), 0, on_step)
    saved(job, tmp_path / "four", 4)
    assert digests(tmp_path / "2") == digests(tmp_path / "four")


def test_the_learning_rate_is_constant_over_calls(job: Job, tmp_path: Path) -> None:
    steps = saved(job.but(grad_accum=1), tmp_path / "c", 2, 2)
    assert {s.learning_rate for s in steps} == {1e-2}


@pytest.mark.parametrize("changed", [{"learning_rate": 1e-3}, {"weight_decay": 0.5}])
def test_a_changed_setting_takes_effect_on_resume(job: Job, tmp_path: Path, changed: dict[str, float]) -> None:
    import torch
    from safetensors.torch import load_file

    saved(job, tmp_path / "c", 4)
    rows, after = make_rows(8)[4:], {}
    for name, other in (("same", job), ("changed", job.but(**changed))):
        engine = other.restored(tmp_path / "c", 1)
        run(engine, rows, 1)
        engine.save(tmp_path / name)
        after[name] = load_file(tmp_path / name / "adapter_model.safetensors")
    start = load_file(tmp_path / "c" / "adapter_model.safetensors")
    for key, old in start.items():
        same, moved = after["same"][key] - old, after["changed"][key] - old
        if "learning_rate" in changed:  # the same moments, a tenth of the way
            torch.testing.assert_close(moved, same * 0.1, rtol=1e-3, atol=1e-7)
        else:
            torch.testing.assert_close(moved, same - 1e-2 * 0.5 * old, rtol=1e-3, atol=1e-7)
    moments = [sha256_file(tmp_path / name / "optimizer.safetensors") for name in ("same", "changed")]
    assert moments[0] == moments[1]
    state = json.loads((tmp_path / "changed" / "trainer_state.json").read_bytes())
    assert state["optimizer"] | changed == state["optimizer"]


def test_evaluating_changes_nothing(job: Job, tmp_path: Path) -> None:
    job, rows, held = job.but(lora={"dropout": 0.1}), make_rows(4), make_rows(3, seed=9)
    engine = job.load()
    before = engine.evaluate(held)
    run(engine, rows)
    after = engine.evaluate(held)
    assert engine.evaluate(held) == after != before
    engine.save(tmp_path / "evaluated")
    saved(job, tmp_path / "plain", 4)
    assert digests(tmp_path / "evaluated") == digests(tmp_path / "plain")
    restored = job.restored(tmp_path / "plain", 1)
    assert restored.evaluate(held) == after


def test_what_was_chosen_is_said(job: Job) -> None:
    from stepctl.trainer.torch_engine import TorchEngine

    engine = TorchEngine()
    engine.imports("sft")
    loaded = engine.load(job.spec, None)
    assert (loaded.device, loaded.precision) == ("cpu", "fp32")
    assert "CPU" in loaded.reason
    wanted = {"stepctl", "python", "torch", "transformers", "trl", "peft", "threads", "device", "cpu_capability", "cpu"}
    assert wanted <= loaded.versions.keys()
    assert all(isinstance(v, str) and v for v in loaded.versions.values())


def test_a_job_that_starts_elsewhere_is_refused(job: Job) -> None:
    with pytest.raises(StepctlError, match="at step 0, and the job starts at step 3"):
        run(job.load(), make_rows(1), 3)


def test_no_rows_are_no_steps(job: Job) -> None:
    assert run(job.load(), []) == []
