"""The command line over a bucket of the Hub: several machines, failed pushes, kills, damage, forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.cli.hub_machines import bucket_of, machine, shared_model, trained
from tests.doubles.hub import Fault, Hub
from tests.doubles.hub.faults import When
from tests.doubles.project import Project, rows, said

BATCH = "POST .*/batch"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"hf://buckets/u/{tmp_path.name}/pre"


@pytest.fixture
def one(plain_hub: Hub, url: str, tmp_path: Path) -> Project:
    return machine(plain_hub, url, tmp_path / "one", model=shared_model(tmp_path))


@pytest.fixture
def two(plain_hub: Hub, url: str, one: Project, tmp_path: Path) -> Project:
    return machine(plain_hub, url, tmp_path / "two", model=one.model)


def test_machines_take_turns(plain_hub: Hub, url: str, one: Project, two: Project) -> None:
    first = one.train(one.trace("a.jsonl", rows(10)), "--key", "a")
    assert (first["from_step"], first["global_step"], first["bucket"]) == (0, 3, url)
    plain_hub.clear_requests()
    second = two.train(two.trace("b.jsonl", rows(10, 20)), "--key", "b")
    assert (second["from_step"], second["global_step"]) == (3, 6)
    assert plain_hub.down("/data/") > 0
    plain_hub.clear_requests()
    third = two.train(two.trace("c.jsonl", rows(1, 40)))
    assert (third["from_step"], third["global_step"]) == (6, 7)
    assert plain_hub.down("/data/") == 0  # what this machine sent is here
    # The same key from another machine is answered; nothing is trained.
    again = one.train(one.trace("b.jsonl", rows(10, 20)), "--key", "b")
    assert (again["replayed"], again["global_step"]) == (True, 6)
    assert trained(plain_hub, one, url) == 21
    for project in (one, two):
        project.verify()
        assert project.status()["step"] == 7
    log = one.run("lineage", "log", "--json")
    assert json.loads(log.stdout)["step"] == 7
    pulled = one.run("lineage", "pull", "out", "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert one.run("lineage", "rollback", "--to", "3").returncode == 0
    assert two.train(two.trace("d.jsonl", rows(1, 60)))["from_step"] == 3
    assert one.status()["step"] == 4


def test_reading_wants_a_bucket_and_training_makes_one(plain_hub: Hub, url: str, one: Project) -> None:
    for command in (["status"], ["lineage", "verify"], ["lineage", "log"], ["lineage", "ls"]):
        done = one.run(*command, "--json")
        assert done.returncode == 1, (command, done.stdout)
        assert json.loads(done.stdout)["error"]["code"] == "hub_no_bucket"
        assert f"there is no bucket {bucket_of(url)}" in done.stderr
    assert plain_hub.requests("POST /api/buckets/[^/]+/[^/]+$") == []
    assert one.train(one.trace("a.jsonl", rows(4)))["global_step"] == 1


@pytest.mark.parametrize("then", ["attach", "train"])
def test_a_failed_push_is_kept_and_committed_later(
    plain_hub: Hub, url: str, one: Project, two: Project, then: str
) -> None:
    one.train(one.trace("a.jsonl", rows(4)))
    plain_hub.faults(Fault(BATCH, status=413))
    failed = one.train(one.trace("b.jsonl", rows(4, 10)), "--key", "b", code=9)
    assert (failed["state"], failed["error"]["code"]) == ("commit_pending", "commit_pending")
    assert "storage is full" in failed["error"]["message"]
    assert failed["error"]["next"] == f"stepctl train attach {failed['run']}"
    still = one.run("train", "attach", failed["run"])
    assert still.returncode in (1, 9)
    assert "storage is full" in still.stderr
    assert two.status()["step"] == 1
    plain_hub.faults()
    if then == "attach":
        assert one.run("train", "attach", failed["run"]).returncode == 0
    else:
        assert one.train(one.trace("c.jsonl", rows(4, 20)))["from_step"] == 2
    assert two.status()["step"] == (2 if then == "attach" else 3)
    assert trained(plain_hub, two, url) == (8 if then == "attach" else 12)
    assert one.train("b.jsonl", "--key", "b")["replayed"] is True
    two.verify()


def test_two_machines_from_one_head(plain_hub: Hub, url: str, one: Project, two: Project) -> None:
    one.train(one.trace("a.jsonl", rows(4)))
    processes: list[subprocess.Popen[str]] = []
    for number, project in enumerate((one, two)):
        project.faults(pause_at="saving")
        name = project.trace("b.jsonl", rows(4, 10 + 10 * number))
        processes.append(project.start("train", name, "--json"))
    for project in (one, two):
        project.wait_for("saving")
    for project in (one, two):
        project.go()
    done = [process.communicate(timeout=60) for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 4], done
    answers = [json.loads(out) for out, _ in done]
    (head,) = (a["checkpoint"] for a, p in zip(answers, processes, strict=True) if p.returncode == 0)
    fork = next(a for a, p in zip(answers, processes, strict=True) if p.returncode == 4)
    for project in (one, two):
        assert project.status()["head"] == head
        project.verify()
    assert fork["checkpoint"] in one.run("lineage", "forks").stdout
    # What the loser is told to do works: the same call again trains on the new head.
    loser = one if processes[0].returncode == 4 else two
    loser.faults()
    again = loser.train("b.jsonl")
    assert (again["from_step"], again["global_step"]) == (2, 3)


KILLS = [
    ("POST /cas-.*/xorbs", 1, "before"),
    (BATCH, 1, "after"),
    (BATCH, 2, "before"),
    (BATCH, 2, "after"),
    ("POST .*/paths-info", 4, "after"),
]


@pytest.mark.parametrize(("match", "nth", "when"), KILLS)
def test_a_job_killed_in_its_commit(
    plain_hub: Hub, url: str, one: Project, two: Project, match: str, nth: int, when: When
) -> None:
    """It had saved its work: the command line commits it, exactly once."""
    one.train(one.trace("a.jsonl", rows(4)))
    one.trace("b.jsonl", rows(10, 20))
    plain_hub.faults(Fault(match, nth=nth, when=when, kill=str(one.path / "job.pgid")))
    done = one.run("train", "b.jsonl", "--key", "b", "--json")
    plain_hub.faults()
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert two.status()["step"] in (1, 4)
    again = one.train("b.jsonl", "--key", "b")
    assert (again["from_step"], again["global_step"]) == (1, 4)
    assert trained(plain_hub, two, url) == 14
    two.verify()


def test_a_command_line_killed_while_it_commits_for_a_dead_job(
    plain_hub: Hub, url: str, one: Project, two: Project
) -> None:
    one.train(one.trace("a.jsonl", rows(4)))
    one.trace("b.jsonl", rows(4, 20))
    plain_hub.faults(Fault(BATCH, status=413))
    one.train("b.jsonl", "--key", "b", code=9)
    for step in (1, 2):  # the files, then the manifest
        process = subprocess.Popen(
            one.command("train", "attach", "last"),
            cwd=one.path,
            env=one.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (one.path / "cli.pgid").write_text(str(process.pid))
        plain_hub.faults(Fault(BATCH, nth=1, when="after", kill=str(one.path / "cli.pgid")))
        assert process.wait(30) == -signal.SIGKILL
        plain_hub.faults()
        assert two.status()["step"] == step
    assert one.run("train", "attach", "last").returncode == 0
    assert one.train("b.jsonl", "--key", "b")["replayed"] is True
    assert trained(plain_hub, two, url) == 8
    two.verify()


def test_damage_is_named_and_never_trained_on(plain_hub: Hub, url: str, one: Project, two: Project) -> None:
    head = one.train(one.trace("a.jsonl", rows(4)))["checkpoint"]
    plain_hub.flip(bucket_of(url), f"pre/main/checkpoints/{head}/optimizer.safetensors")
    for project in (one, two):
        done = project.run("lineage", "verify")
        assert done.returncode == 1
        assert "optimizer.safetensors" in done.stdout + done.stderr
    refused = two.run("train", two.trace("b.jsonl", rows(4, 20)), "--json")
    assert refused.returncode == 1
    assert "optimizer.safetensors" in json.loads(refused.stdout)["error"]["message"]
    assert two.status()["step"] == 1
    # A machine that has the right bytes goes on with them, and so leads out.
    assert one.train(one.trace("c.jsonl", rows(4, 30)))["from_step"] == 1


def test_a_slow_push_is_shown(plain_hub: Hub, one: Project) -> None:
    plain_hub.faults(Fault("POST /cas-.*/xorbs", nth=1, delay=2.5))
    done = one.run("train", one.trace("a.jsonl", rows(4)), env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    (run,) = one.runs()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["type"] == "transfer"]
    assert 1 <= len(told) <= 4
    assert any(f"of {told[0]['bytes_total']} B" in line for line in done.stderr.splitlines())
    assert "saving" in said(run)
    assert os.environ.get("HF_TOKEN", "hf_write") not in done.stderr
