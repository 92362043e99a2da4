"""Troubles that people had with resumed training, through the command line and the real trainer."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.project import Project, rows
from tests.trainer.tiny import build_tiny

pytestmark = pytest.mark.torch

FILES = ("adapter_model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def real(tmp_path: Path, model: Path) -> Project:
    """A project with the real trainer."""
    project = Project(tmp_path, model=model)
    project.faults(engine="torch")
    return project


def folder_of(project: Project, report: dict[str, Any]) -> Path:
    return project.path / "checkpoints" / report["lineage"] / "checkpoints" / report["checkpoint"]


def loaded(project: Project, report: dict[str, Any], name: str = "adapter_model.safetensors") -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder_of(project, report) / name)


def events(project: Project, kind: str) -> list[dict[str, Any]]:
    lines = (project.runs()[-1] / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def test_a_lowered_learning_rate_takes_effect_and_the_moments_stay(real: Project) -> None:
    import torch

    first = real.train(real.trace("a.jsonl", rows(8)), "--grad-accum", 2, "--learning-rate", 1e-3)
    before = loaded(real, first)
    # What the very same step does with the old rate, in a lineage of its own.
    real.train("a.jsonl", "--grad-accum", 2, "--learning-rate", 1e-3, "--lineage", "other")
    real.trace("b.jsonl", rows(2, 30))
    same = real.train("b.jsonl", "--lineage", "other")
    done = real.train("b.jsonl", "--learning-rate", 1e-4)
    assert (done["from_step"], done["global_step"], done["steps_run"]) == (4, 5, 1)
    assert [event["learning_rate"] for event in events(real, "progress")] == [1e-4]
    record = json.loads((real.runs()[-1] / "run.json").read_text())
    assert record["settings"]["train"]["learning_rate"] == 1e-4
    moved, slow = loaded(real, same), loaded(real, done)
    for name, tensor in before.items():
        torch.testing.assert_close(slow[name] - tensor, (moved[name] - tensor) / 10, rtol=2e-3, atol=1e-8)
    moments = loaded(real, done, "optimizer.safetensors")
    assert {float(t) for name, t in moments.items() if name.endswith(".step")} == {5.0}
    assert all(
        torch.equal(t, other)
        for t, other in zip(moments.values(), loaded(real, same, "optimizer.safetensors").values(), strict=True)
    )


def test_a_learning_rate_that_is_not_given_is_the_lineages_and_said(real: Project) -> None:
    real.train(real.trace("a.jsonl", rows(2)), "--grad-accum", 1, "--learning-rate", 3e-4)
    said = real.run("train", real.trace("b.jsonl", rows(2, 5)))
    assert said.returncode == 0
    assert "learning_rate 0.0003 is the lineage's (the default is 0.0001)" in said.stderr
    assert "grad_accum 1 is the lineage's (the default is 4)" in said.stderr
    record = json.loads((real.runs()[-1] / "run.json").read_text())
    assert record["settings"]["train"]["learning_rate"] == 3e-4
    assert [event["learning_rate"] for event in events(real, "progress")] == [3e-4, 3e-4]


@pytest.mark.parametrize(("count", "size", "groups"), [(5, 2, [2, 2, 1]), (5, 4, [4, 1]), (3, 4, [3]), (4, 2, [2, 2])])
def test_rows_that_do_not_fill_the_last_group(project: Project, count: int, size: int, groups: list[int]) -> None:
    done = project.train(project.trace("a.jsonl", rows(count)), "--grad-accum", size)
    assert (done["rows_done"], done["steps_run"]) == (count, len(groups))
    ends = [0, *(event["rows_done"] for event in events(project, "progress"))]
    assert [after - before for before, after in itertools.pairwise(ends)] == groups


def test_a_short_last_group_is_trained_as_if_it_were_alone(real: Project) -> None:
    whole = real.train(real.trace("five.jsonl", rows(5)), "--grad-accum", 4)
    real.train(real.trace("four.jsonl", rows(4)), "--grad-accum", 4, "--lineage", "parts")
    alone = real.train(real.trace("one.jsonl", rows(1, 4)), "--grad-accum", 1, "--lineage", "parts")
    assert whole["losses"][1] == alone["losses"][0]
    for name in FILES:
        assert (folder_of(real, whole) / name).read_bytes() == (folder_of(real, alone) / name).read_bytes()


def rewritten(folder: Path, name: str, data: bytes) -> None:
    """Another file in a checkpoint, with a manifest that says so: as a foreign program would leave it."""
    (folder / name).chmod(0o644)
    (folder / name).write_bytes(data)
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["files"]:
        if entry["path"] == name:
            entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    path.chmod(0o644)
    path.write_text(json.dumps(manifest))


def test_an_optimizer_of_other_modules_is_refused_before_the_first_step(real: Project) -> None:
    import torch
    from safetensors.torch import save

    done = real.train(real.trace("a.jsonl", rows(4)))
    folder = folder_of(real, done)
    moments = loaded(real, done, "optimizer.safetensors")
    parts = (("exp_avg", torch.zeros(4, 4)), ("exp_avg_sq", torch.zeros(4, 4)), ("step", torch.tensor(1.0)))
    moments |= {
        f"base_model.model.lm_head.lora_{side}.weight.{part}": tensor.clone() for side in "AB" for part, tensor in parts
    }
    rewritten(folder, "optimizer.safetensors", save(moments))
    answer = real.train(real.trace("b.jsonl", rows(4, 9)), code=1)
    message = answer["error"]["message"]
    assert "optimizer.safetensors holds 18 tensors, and the adapter has 16 trainable ones" in message
    assert "not in the adapter: lm_head" in message
    assert (answer["steps_run"], answer["error"]["code"]) == (0, "damaged_checkpoint")
    assert real.status()["head"] == done["checkpoint"]


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_sft_leads_to_a_preference_method_with_its_policy_as_the_reference(real: Project, method: str) -> None:
    real.train(real.trace("a.jsonl", rows(8)), "--learning-rate", 1e-2)
    data = {
        "dpo": [{"prompt": f"q{i}?", "chosen": f" yes {i}.", "rejected": f" no {i * 2}."} for i in range(4)],
        "kto": [{"prompt": f"q{i}?", "completion": f" yes {i}.", "label": i % 2 == 0} for i in range(4)],
    }[method]
    real.trace("p.jsonl", data)
    start = {"dpo": 0.693147, "kto": 0.5}[method]
    done = real.train("p.jsonl", "--method", method, "--lineage", method, "--init-from", "main", "--grad-accum", 2)
    assert done["losses"][0] == pytest.approx(start, abs=1e-5)
    assert (folder_of(real, done) / "reference.safetensors").is_file()
    # A second call, in a fresh process, still compares with the policy that SFT made.
    again = real.train("p.jsonl", "--lineage", method, "--learning-rate", 1e-2)
    assert (again["method"], again["from_step"]) == (method, 2)
    assert again["losses"][0] != pytest.approx(start, abs=1e-5)
    assert loaded(real, again, "reference.safetensors").keys() == loaded(real, done).keys()
    origin = ["--method", method, "--init-from", "main", "--grad-accum", 2]
    for n, more in enumerate((origin, [])):
        part = real.train(real.trace(f"{n}.jsonl", data[2 * n :][:2]), "--lineage", "parts", *more)
    assert (part["from_step"], part["exact"]) == (1, True)
    for name in (*FILES, "reference.safetensors"):
        assert (folder_of(real, part) / name).read_bytes() == (folder_of(real, done) / name).read_bytes(), name
    real.verify()
    conflict = real.train("p.jsonl", "--lineage", method, "--method", "sft", code=3)
    assert conflict["error"]["code"] == "trace_refused"


def test_a_single_row_group_of_kto_is_warned_of(project: Project) -> None:
    data = [{"prompt": f"q{i}?", "completion": f" yes {i}.", "label": i % 2 == 0} for i in range(5)]
    project.trace("p.jsonl", data)
    done = project.train("p.jsonl", "--method", "kto")
    assert "single_row_group" in [warning["code"] for warning in done["warnings"]]
    done = project.train("p.jsonl", "--method", "kto", "--grad-accum", 3)
    assert "single_row_group" not in [warning["code"] for warning in done["warnings"]]
