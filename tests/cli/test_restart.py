"""Runs that are started again, repeated fresh starts, and what the hints of failed runs say, typed as they stand."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.project import Project, rows, until

from stepctl.jobs.directory import JobDir


def edited(run: Path, **changes: Any) -> None:
    path = run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without_trace(project: Project, *args: object) -> Path:
    """A run as a client leaves it that dies before the examples are sent; nothing is committed."""
    bucket = project.path / "checkpoints"
    shutil.copytree(bucket, project.path / "before") if bucket.exists() else (project.path / "before").mkdir()
    project.train(project.trace("lost.jsonl", rows(4, 70)), *args)
    shutil.rmtree(bucket)
    (project.path / "before").rename(bucket)
    run = project.runs()[-1]
    edited(run, state="needs_trace", report=None, job=None)
    JobDir(run).clear()
    return run


def test_what_was_asked_for_is_asked_again(project: Project) -> None:
    """--fresh also where there was nothing yet, and leave to run a model's code."""
    run = without_trace(project, "--fresh")
    record = json.loads((run / "run.json").read_text())
    assert record["new_root"] is False
    edited(run, settings={**record["settings"], "trust_remote_code": True})
    other = project.train(project.trace("a.jsonl", rows(4)))
    done = project.run("train", "attach", run.name, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["run"], answer["from_step"], answer["global_step"]) == (run.name, 0, 1)
    assert json.loads((run / "job.json").read_text())["model"]["trust_remote_code"] is True
    assert other["checkpoint"] in project.call("lineage", "forks").stdout


def test_attach_keeps_its_time_limit_and_leaves_on_ctrl_c(project: Project) -> None:
    run = without_trace(project, "--key", "k")
    project.faults(pause_at="step:1")
    done = project.run("train", "attach", run.name, "--timeout", "0", "--json")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (124, "running")
    project.wait_for("step:1", run)
    project.go()
    assert project.run("train", "attach", run.name).returncode == 0
    assert project.trained() == 4


def test_ctrl_c_leaves_a_restarted_run_alone(project: Project) -> None:
    run = without_trace(project)
    project.faults(pause_at="step:1")
    process = project.start("train", "attach", run.name, "--json")
    project.wait_for("step:1", run)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["state"] == "running"
    project.go()
    assert project.run("train", "attach", run.name).returncode == 0


def test_stop_says_that_its_time_limit_passed(project: Project) -> None:
    project.faults(pause_at="step:1")
    project.train(project.trace("a.jsonl", rows(8)), "--detach")
    run = project.wait_for("step:1")
    for verb in ("stop", "cancel"):
        done = project.run("train", verb, run.name, "--timeout", "0")
        assert done.returncode == 124
        assert f"stepctl train attach {run.name}" in done.stderr
    project.go()
    until(lambda: (run / "exit_code").exists())


def test_a_fresh_start_that_goes_on_keeps_its_settings(project: Project) -> None:
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\nsave_every_minutes = 1e-9\n[targets.local]"))
    project.train(project.trace("a.jsonl", rows(4)))
    project.trace("b.jsonl", rows(8, 20))
    project.faults(kill_at="step:2")
    project.train("b.jsonl", "--fresh", "--key", "b", "--learning-rate", "1e-3", "--grad-accum", "2", code=1)
    project.faults()
    rest = project.train("b.jsonl", "--fresh", "--key", "b")
    assert rest["grad_accum"] == 2
    assert (rest["from_step"] > 0, rest["rows_done"]) == (True, 8)
    log = json.loads(project.call("lineage", "log", "--json").stdout)["entries"]
    assert [entry["changed"] for entry in log if entry["kind"] == "run"] == [[], []]
    assert project.trained() == 8


def test_the_hint_of_a_dead_run_can_be_typed(project: Project, trained: Callable[[int], list[str]]) -> None:
    """On its own lineage, and with a file whose name has a space."""
    (head,) = trained(1)
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\nsave_every_minutes = 1e-9\n[targets.local]"))
    project.faults(kill_at="step:2")
    trace = project.trace("my trace.jsonl", rows(8, 20))
    hint = project.train(trace, "--lineage", "other", code=1)["error"]["next"]
    words = shlex.split(hint.partition(" (log:")[0])
    project.faults()
    done = project.run(*words[1:], "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["lineage"], answer["from_step"], answer["rows_done"]) == ("other", 1, 8)
    assert project.status()["head"] == head


@pytest.mark.parametrize("python", ["/nowhere/python"])
def test_a_run_that_cannot_be_started_is_closed(project: Project, python: str) -> None:
    project.train(project.trace("a.jsonl", rows(4)), "--lineage", "sft")
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace(f'python = "{project.path}/python"', f'python = "{python}"'))
    error = project.train("a.jsonl", "--init-from", "sft", code=1)["error"]
    assert error["code"] == "no_trainer"
    run = project.runs()[-1]
    record = json.loads((run / "run.json").read_text())
    assert record["state"] == "failed"
    assert record["finished_at"]
    assert record["report"]["error"]["code"] == "no_trainer"
    assert not (run / "init").exists()
    assert project.run("train", "attach", run.name).returncode == 1


def test_a_foreign_value_in_a_manifest_is_no_bug(project: Project, trained: Callable[[int], list[str]]) -> None:
    (name,) = trained(1)
    path = project.path / "checkpoints/main/checkpoints" / name / "manifest.json"
    path.write_text(path.read_text().replace('"grad_accum": 4', '"grad_accum": 0'))
    error = project.train("0.jsonl", code=2)["error"]
    assert "grad_accum" in error["message"]
    assert project.train("0.jsonl", "--grad-accum", "4")["global_step"] == 2
