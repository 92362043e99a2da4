"""The command line over the real trainer and a tiny real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doubles.project import Project, rows
from tests.trainer.tiny import build_tiny

pytestmark = pytest.mark.torch


@pytest.fixture
def real(tmp_path: Path) -> Project:
    """A project whose stand-in uses the real engine."""
    model = build_tiny(tmp_path / "tiny")
    project = Project(tmp_path, model=model)
    project.faults(engine="torch")
    return project


def test_a_killed_step_a_resume_and_what_can_be_asked_then(real: Project) -> None:
    real.trace("a.jsonl", rows(8))
    real.faults(engine="torch", kill_at="step:2")
    failed = real.train("a.jsonl", "--key", "a", code=1)
    assert failed["error"]["code"] == "job_died"
    real.faults(engine="torch")
    done = real.train("a.jsonl", "--key", "a")
    assert (done["from_step"], done["global_step"], done["exact"]) == (0, 2, True)
    assert done["loss"] is not None
    assert done["device"] == "cpu"
    assert done["precision"] == "fp32"
    more = real.train(real.trace("b.jsonl", rows(1, 40)))
    assert (more["from_step"], more["global_step"]) == (2, 3)
    real.verify()
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    head = real.path / "checkpoints/main/checkpoints" / more["checkpoint"]
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(real.model), str(head))
    _ask(real)


def _ask(real: Project) -> None:
    """The questions go to a Python that has the trainer's modules."""
    toml = real.path / "stepctl.toml"
    toml.write_text(f'model = "{real.model}"\n')
    before = sorted(p for p in real.path.rglob("*") if "home" not in p.parts and "tiny" not in p.parts)
    plan = json.loads(real.run("train", real.trace("c.jsonl", rows(5, 60)), "--dry-run", "--json").stdout)
    assert (plan["state"], plan["from_step"], plan["global_step"], plan["device"]) == ("planned", 3, 5, "cpu")
    assert plan["tokens"] > plan["supervised_tokens"] > 0
    assert plan["memory_bytes"] > 0
    after = sorted(p for p in real.path.rglob("*") if "home" not in p.parts and "tiny" not in p.parts)
    assert [p for p in after if p not in before] == [real.path / "c.jsonl"]
    said = real.run("try", "What is 1 plus 1?", "--max-new-tokens", "4", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["checkpoint"].startswith("00000003-")
    doctor = real.run("doctor", "--json")
    assert doctor.returncode == 0, doctor.stdout
    checks = {c["name"]: c["level"] for c in json.loads(doctor.stdout)["checks"]}
    assert {"python", "torch", "device", "precision", "memory", "disk", "bucket", "token", "hub", "ssh"} <= set(checks)


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ({"STEPCTL_TRAIN__DEVICE": "cuda:0"}, "no_device"),
        ({"STEPCTL_TRAIN__GPU_IDS": "0"}, "no_device"),
        ({"LORA_TARGET_MODULES": "q_proj,wqkv"}, "target_modules"),
    ],
)
def test_what_only_the_trainer_can_refuse_is_wrong_usage_too(real: Project, env: dict[str, str], code: str) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    answer = real.train(real.trace("a.jsonl", rows(2)), env={**env, **hidden}, code=2)
    assert (answer["state"], answer["error"]["code"], answer["exit_code"]) == ("failed", code, 2)
    assert answer["error"]["next"]
    assert answer["device"] is None
    attached = real.run("train", "attach", answer["run"])
    assert attached.returncode == 2


def test_another_number_of_threads_is_not_exact_and_is_said(real: Project) -> None:
    first = real.train(real.trace("a.jsonl", rows(4)), env={"OMP_NUM_THREADS": "2"})
    assert first["exact"] is True
    done = real.run("train", real.trace("b.jsonl", rows(4, 10)), "--json", env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    second = json.loads(done.stdout)
    assert (second["exact"], second["global_step"]) == (False, 2)
    (warning,) = [w for w in second["warnings"] if w["code"] == "inexact"]
    assert "threads: 2 -> 1" in warning["message"]
    assert "threads: 2 -> 1" in done.stderr
    stored = json.loads(
        (real.path / "checkpoints/main/checkpoints" / second["checkpoint"] / "manifest.json").read_bytes()
    )
    assert (stored["exact"], stored["versions"]["threads"], stored["versions"]["precision"]) == (False, "1", "fp32")
