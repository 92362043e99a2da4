"""A lineage that goes on elsewhere says so, in the report and in manifests; errors of usage keep their exit code."""

from __future__ import annotations

import json
from typing import Any

from tests.doubles.project import Project, rows


def manifest(project: Project, report: dict[str, Any]) -> dict[str, Any]:
    path = project.path / "checkpoints/main/checkpoints" / report["checkpoint"] / "manifest.json"
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def inexact(report: dict[str, Any]) -> list[str]:
    return [w["message"] for w in report["warnings"] if w["code"] == "inexact"]


def test_another_machine_is_said_once_and_never_exact_again(project: Project) -> None:
    here = {"torch": "2", "threads": "2", "device": "cpu", "precision": "fp32"}
    project.faults(versions=here)
    first = project.train(project.trace("a.jsonl", rows(4)))
    second = project.train(project.trace("b.jsonl", rows(4, 10)))
    assert (first["exact"], second["exact"], inexact(second)) == (True, True, [])
    project.faults(versions={**here, "threads": "1", "device": "G", "precision": "bf16"})
    moved = project.train(project.trace("c.jsonl", rows(4, 20)))
    (said,) = inexact(moved)
    assert said.endswith("changed since step 2: threads: 2 -> 1, device: cpu -> G, precision: fp32 -> bf16")
    after = project.train(project.trace("d.jsonl", rows(4, 30)))
    assert inexact(after) == []
    exact = [manifest(project, report)["exact"] for report in (second, moved, after)]
    assert exact == [report["exact"] for report in (second, moved, after)] == [True, False, False]
    anew = project.train(project.trace("e.jsonl", rows(4, 40)), "--fresh")
    assert anew["exact"] and manifest(project, anew)["exact"]


def test_another_chat_template_in_the_models_folder_is_not_exact_and_is_said(project: Project) -> None:
    """It is not part of the identity of a model, and other tokens are trained with it."""
    assert project.train(project.trace("a.jsonl", rows(4)))["exact"]
    template = project.model / "chat_template.jinja"
    template.write_text(template.read_text().replace("}}<|im_end|>", "}} <|im_end|>"))
    other = project.train(project.trace("b.jsonl", rows(4, 10)))
    (said,) = inexact(other)
    assert "changed since step 1: chat_template: " in said
    assert (other["exact"], manifest(project, other)["exact"]) == (False, False)


def test_a_gpu_that_cannot_repeat_its_sums_is_not_exact_and_is_said(project: Project) -> None:
    project.faults(repeatable=False)
    first = project.train(project.trace("a.jsonl", rows(4)))
    (said,) = inexact(first)
    assert "is not promised" in said
    project.faults()
    second = project.train(project.trace("b.jsonl", rows(4, 10)))
    assert (inexact(second), [first["exact"], second["exact"]]) == ([], [False, False])
    assert not manifest(project, second)["exact"]


def test_a_job_that_died_after_its_commit_reports_what_its_manifest_says(project: Project) -> None:
    project.faults(versions={"threads": "2"})
    project.train(project.trace("a.jsonl", rows(4)))
    project.faults(versions={"threads": "1"}, kill_at="manifest_stored")
    died = project.train(project.trace("b.jsonl", rows(4, 10)))
    assert (died["state"], died["exact"], manifest(project, died)["exact"]) == ("done", False, False)


def test_what_the_trainer_finds_wrong_with_the_settings_is_exit_code_2(project: Project) -> None:
    answer = project.train(project.trace("a.jsonl", rows(4)), "--gpu-ids", "0", code=2)
    assert (answer["state"], answer["error"]["code"], answer["exit_code"]) == ("failed", "no_device", 2)
    again = project.run("train", "attach", answer["run"], "--json")
    assert (again.returncode, json.loads(again.stdout)["exit_code"]) == (2, 2)
    (run,) = project.runs()
    assert (run / "exit_code").read_text().strip() == "2"
    project.train("a.jsonl")
    assert project.trained() == 4


def test_a_device_that_is_no_word_is_refused_before_anything(project: Project) -> None:
    answer = project.train(project.trace("a.jsonl", rows(4)), env={"STEPCTL_TRAIN__DEVICE": "gpu"}, code=2)
    assert answer["error"]["message"].endswith("did you mean cuda?")
    assert project.runs() == []
