"""What a job saved on its machine comes home whole before the machine is let go, whatever breaks on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.cli.test_ssh import Away
from tests.doubles.project import kill, rows, until
from tests.doubles.sshd import Sshd

from stepctl.targets.ssh import machine as ssh_machine

pytestmark = pytest.mark.sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        server.wrapper()
        yield server


@pytest.fixture
def away(tmp_path: Path, sshd: Sshd) -> Away:
    """A run of which four checkpoints wait on its machine, and nobody has fetched one."""
    project = Away(tmp_path, sshd)
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text() + "[train]\nsave_every_minutes = 0.000001\n")
    project.trace("b.jsonl", rows(16))
    project.faults(pause_at="steps")
    process = project.start("train", "b.jsonl", "--key", "b")
    run = project.wait_for("steps")
    kill(process)
    project.go()
    until(lambda: (project.there / "runs" / run.name / "exit_code").exists())
    return project


def attach(project: Away) -> tuple[int, dict[str, Any]]:
    done = project.call("train", "attach", "last", "--json")
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_fetch_that_breaks_off_lets_nothing_go(away: Away) -> None:
    """One checkpoint is here and the disk is full: the others must not be given up with the machine."""
    real, calls = ssh_machine.fetch_checkpoint, 0

    def full(*args: Any, **kw: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kw)

    with mock.patch.object(ssh_machine, "fetch_checkpoint", full):
        code, answer = attach(away)
    assert (code, answer["error"]["code"]) == (1, "disk_full")
    assert len(away.jobs()) == 1
    code, answer = attach(away)
    assert (code, answer["state"], answer["global_step"]) == (0, "done", 4)
    assert away.trained() == 16
    away.verify()
    assert away.jobs() == []


def test_a_bucket_that_refuses_has_everything_here_first(away: Away) -> None:
    bucket = away.path / "checkpoints"
    bucket.rename(away.path / "aside")
    bucket.write_text("in the way")
    code, answer = attach(away)
    assert (code, answer["error"]["code"]) == (9, "commit_pending")
    report = json.loads((away.runs()[-1] / "run.json").read_text())["report"]
    assert (report["state"], report["global_step"], report["rows_done"]) == ("commit_pending", 4, 16)
    assert away.jobs() == []  # the machine is let go: the work is here
    bucket.unlink()
    (away.path / "aside").rename(bucket)
    code, answer = attach(away)
    assert (code, answer["state"]) == (0, "done")
    assert away.trained() == 16
    away.verify()


def test_a_disk_that_is_full_there_loses_nothing(away: Away) -> None:
    """The job saved its last step, and could not put it into its own bucket; here there is room."""
    job = away.jobs()[0]
    saved = sorted((job / "bucket/main/checkpoints").iterdir())
    (job / "out").mkdir(exist_ok=True)
    saved[-1].rename(job / "out" / saved[-1].name)
    result = json.loads((job / "result.json").read_text())
    error = {"code": "commit_pending", "message": "no room", "next": ""}
    (job / "result.json").write_text(json.dumps({**result, "state": "commit_pending", "error": error}))
    (job / "exit_code").write_text("9\n")
    code, answer = attach(away)
    assert (code, answer["state"], answer["global_step"], answer["error"]) == (0, "done", 4, None)
    assert away.trained() == 16
    assert away.train("b.jsonl", "--key", "b")["replayed"]
    away.verify()


def test_a_cancelled_run_claims_only_what_is_in_the_bucket(away: Away) -> None:
    job = away.jobs()[0]
    result = json.loads((job / "result.json").read_text())
    (job / "result.json").write_text(json.dumps({**result, "state": "cancelled"}))
    (job / "exit_code").write_text("7\n")
    code, answer = attach(away)
    assert (code, answer["state"], answer["global_step"], answer["checkpoint"]) == (7, "cancelled", 0, None)
    assert answer["losses"] == []
    assert away.status()["step"] == 0
    assert away.train("b.jsonl", "--key", "b")["global_step"] == 4
    assert away.trained() == 16


def test_a_folder_that_was_removed_there_is_said_to_be_gone(away: Away) -> None:
    [job] = away.jobs()
    shutil.rmtree(job)
    code, answer = attach(away)
    assert (code, answer["state"], answer["global_step"]) == (1, "failed", 0)
    assert f"has nothing of run {away.runs()[-1].name} any more" in answer["error"]["message"]


def test_a_disk_that_is_gone_for_good_is_given_up_as_the_message_says(away: Away) -> None:
    run = away.runs()[-1]
    [job] = away.jobs()
    for name in ("job.json", "events.jsonl", "result.json", "exit_code"):
        shutil.copyfile(job / name, run / name)
    away.there.rename(away.path / "not-mounted")
    code, answer = attach(away)
    assert (code, answer["error"]["code"]) == (1, "ssh_no_workdir")
    give_up = f"stepctl train cancel {run.name} --abandon"
    assert give_up in answer["error"]["next"]
    done = away.call(*give_up.split()[1:], "--json")
    assert json.loads(done.stdout)["state"] == "cancelled", done.stderr
    assert away.status()["step"] == 0
    away.there.mkdir()
    assert away.train("b.jsonl", "--key", "b")["global_step"] == 4
    assert away.trained() == 16


def test_a_machine_that_lost_the_end_of_its_files(away: Away) -> None:
    """It went down: what is here of its events is longer than what it has now."""
    job = away.jobs()[0]
    run = away.runs()[-1]
    events = (job / "events.jsonl").read_bytes()
    (run / "events.jsonl").write_bytes(events)
    (run / "job.json").write_bytes((job / "job.json").read_bytes())
    (job / "events.jsonl").write_bytes(events[: len(events) // 2])
    code, answer = attach(away)
    assert (code, answer["state"], answer["global_step"]) == (0, "done", 4)
