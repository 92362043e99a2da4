"""``--dry-run`` and ``doctor`` on machines with GPUs: a canned probe stands for the trainer's Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.project import Project, rows

GIB = 1 << 30
PROBE: dict[str, Any] = {
    "stepctl": "0",
    "python": "3.11",
    "executable": "python",
    "packages": {"torch": "2"},
    "errors": {},
    "cuda_available": True,
    "gpus": [{"index": i, "name": "NVIDIA L4", "memory_bytes": 22 * GIB, "capability": "8.9"} for i in range(2)],
    "bf16_speed": 4.0,
    "threads": 8,
    "cpu_capability": "AVX2",
    "device": "cuda:0,cuda:1",
    "precision": "bf16",
    "reason": "2 GPUs together",
    "refused": None,
}


class Machine:
    """A project whose trainer answers the probe with what it is told to, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.asked_in, self._answer = folder / "asked.json", folder / "answer.json"
        script = folder / "probe.py"
        script.write_text(
            f"import sys, pathlib\n"
            f"pathlib.Path({str(self.asked_in)!r}).write_bytes(sys.stdin.buffer.read())\n"
            f"print(pathlib.Path({str(self._answer)!r}).read_text())\n"
        )
        (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        self.says()

    def says(self, **changed: Any) -> None:
        self._answer.write_text(json.dumps({**PROBE, **changed}))

    def asked(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.asked_in.read_bytes())
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def refusal(code: str, exit_code: int) -> dict[str, Any]:
    refused = {"message": "it cannot be had", "next": "take another", "code": code, "exit_code": exit_code}
    return {"device": None, "precision": None, "reason": None, "refused": refused}


def test_the_plan_asks_with_its_settings_and_says_on_which_gpus(machine: Machine) -> None:
    project = machine.project
    trace = project.trace("a.jsonl", rows(4))
    plan = project.train(trace, "--dry-run", "--gpu-ids", "1,0", "--max-length", "77")
    assert (plan["device"], plan["precision"], plan["state"]) == ("cuda:0,cuda:1", "bf16", "planned")
    asked = machine.asked()
    assert (asked["gpu_ids"], asked["device"], asked["max_length"]) == ([1, 0], "auto", 77)
    assert asked["model"]["source"] == str(project.model)
    assert asked["lora"]["r"] == 8
    told = project.run("train", trace, "--dry-run").stdout
    assert "on: cuda:0,cuda:1 in bf16" in told
    assert "(2 GPUs together)" in told


@pytest.mark.parametrize(("code", "exit_code"), [("does_not_fit", 2), ("no_device", 2), ("hub_unreachable", 1)])
def test_the_plan_refuses_what_the_trainer_would_refuse(machine: Machine, code: str, exit_code: int) -> None:
    machine.says(**refusal(code, exit_code))
    answer = machine.project.train(machine.project.trace("a.jsonl", rows(4)), "--dry-run", code=exit_code)
    assert (answer["error"]["code"], answer["error"]["message"]) == (code, "it cannot be had")
    assert answer["error"]["next"] == "take another"
    assert machine.project.runs() == []


def test_a_probe_that_fails_whole_is_an_error_and_no_bug(machine: Machine) -> None:
    machine._answer.write_text(json.dumps({"error": {"message": "torch is broken", "next": ""}}))
    answer = machine.project.train(machine.project.trace("a.jsonl", rows(4)), "--dry-run", code=1)
    assert answer["error"]["message"] == "torch is broken"


def test_the_plan_warns_of_a_row_that_the_gpu_may_not_hold(machine: Machine) -> None:
    project = machine.project
    small = [{**PROBE["gpus"][0], "memory_bytes": 1 << 20}]
    machine.says(device="cuda:0", gpus=small)
    long = json.dumps({"text": "x" * 1000}) + "\n"
    plan = project.train(project.trace("a.jsonl", long), "--dry-run")
    assert [w["code"] for w in plan["warnings"]] == ["memory"]
    machine.says()
    assert project.train("a.jsonl", "--dry-run")["warnings"] == []


def checks(machine: Machine, code: int, **env: str) -> dict[str, dict[str, str]]:
    done = machine.project.run("doctor", "--json", env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_doctor_shows_every_gpu_and_what_they_have_together(machine: Machine) -> None:
    text = checks(machine, 0)["device"]["text"]
    assert "cuda:0 NVIDIA L4 (22 GiB, capability 8.9), cuda:1 NVIDIA L4" in text
    assert "44 GiB together" in text


def test_doctor_says_that_the_settings_name_what_is_not_there(machine: Machine) -> None:
    machine.says(**refusal("no_device", 2))
    found = checks(machine, 1, STEPCTL_TRAIN__GPU_IDS="7", STEPCTL_TRAIN__DEVICE="cuda:7")
    assert found["device"]["level"] == "bad"
    assert found["device"]["text"].startswith("it cannot be had; here: cuda:0 NVIDIA L4")
    assert found["device"]["mend"] == "take another"
    assert machine.asked() == {"device": "cuda:7", "precision": "auto", "gpu_ids": [7]}
