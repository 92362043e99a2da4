"""Traces of DPO and KTO through the command line: refused, planned, recorded."""

from __future__ import annotations

import json
from typing import Any

from tests.doubles.project import Project

FEEDBACK = [
    {"prompt": f"What is {n}?", "completion": f"It is {n}.", "label": label}
    for n, label in enumerate([True, False, 1, 0, False])
]
PAIRS = [{"prompt": f"What is {n}?", "chosen": f"It is {n}.", "rejected": "No."} for n in range(3)]


def answering(project: Project) -> None:
    """A trainer's Python that knows the device, as the plan asks."""
    probe = {"device": "cpu", "precision": "fp32", "gpus": [], "reason": "as asked"}
    (project.path / "python").write_text(f"#!/bin/sh\necho '{json.dumps(probe)}'\n")


def record(project: Project) -> dict[str, Any]:
    (folder,) = project.runs()
    written: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return written


def test_the_record_has_the_counts_of_labels(project: Project) -> None:
    answer = project.train(project.trace("a.jsonl", FEEDBACK), "--method", "kto")
    assert (answer["method"], answer["num_examples"]) == ("kto", 5)
    assert record(project)["counts"] == {"desirable": 2, "undesirable": 3}


def test_pairs_are_trained_and_have_no_counts(project: Project) -> None:
    answer = project.train(project.trace("a.jsonl", PAIRS), "--method", "dpo")
    assert (answer["method"], answer["num_examples"]) == ("dpo", 3)
    assert record(project)["counts"] == {}


def test_the_plan_shows_the_counts_of_labels(project: Project) -> None:
    answering(project)
    trace = project.trace("a.jsonl", FEEDBACK)
    document = project.train(trace, "--method", "kto", "--dry-run")
    assert document["counts"] == {"desirable": 2, "undesirable": 3}
    done = project.run("train", trace, "--method", "kto", "--dry-run")
    assert "labels: 2 desirable, 3 undesirable\n" in done.stdout + done.stderr
    pairs = project.trace("b.jsonl", PAIRS)
    assert project.train(pairs, "--method", "dpo", "--dry-run")["counts"] == {}
    assert "labels:" not in project.run("train", pairs, "--method", "dpo", "--dry-run").stdout


def test_rows_of_another_method_are_refused(project: Project) -> None:
    for method, rows in (("sft", PAIRS), ("kto", PAIRS), ("dpo", FEEDBACK), ("sft", FEEDBACK)):
        answer = project.train(project.trace("a.jsonl", rows), "--method", method, code=3)
        reasons = [bad["reason"] for bad in answer["error"]["details"]["bad"]]
        assert len({bad["line"] for bad in answer["error"]["details"]["bad"]}) == len(rows)
        assert all("belongs to" in reason for reason in reasons), reasons


def test_train_on_all_is_for_sft_only(project: Project) -> None:
    trace = project.trace("a.jsonl", PAIRS)
    answer = project.train(trace, "--method", "dpo", code=2, env={"STEPCTL_TRAIN__TRAIN_ON": "all"})
    assert "for sft only" in answer["error"]["message"]
    assert 'train.train_on = "assistant"' in answer["error"]["next"]
    assert project.runs() == []
