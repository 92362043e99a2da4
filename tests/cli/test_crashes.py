"""kill -9 of the job, then of the command line, in each named phase.

Afterwards the lineage is clean, the next call starts at the head, and under a key no row is trained twice.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.doubles.project import Project, dying_program, kill, rows, until

PHASES = ("start judging imports model data steps step:2 step:3 step:4 saving files_stored manifest_stored").split()
SAVED = ("files_stored", "manifest_stored")
"""From here on the work is whole on the disk, and must not be lost."""


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_job(project: Project, phase: str) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    project.trace("b.jsonl", rows(10, 20))
    project.faults(kill_at=phase)
    done = project.run("train", "b.jsonl", "--key", "b", "--json")
    answer = json.loads(done.stdout)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if phase in SAVED else 1), done.stderr
    if phase not in SAVED:
        assert answer["error"]["code"] in ("job_died", "needs_trace", "no_trainer")
    project.verify()
    head = project.status()["step"]
    assert head == (4 if phase in SAVED else 1)
    project.faults()
    again = project.train("b.jsonl", "--key", "b")
    assert again["replayed"] == (phase in SAVED)
    assert again["from_step"] == 1
    assert again["global_step"] == 4
    assert project.trained() == 14
    project.verify()


@pytest.mark.parametrize("phase", [p for p in PHASES if p != "start"])
def test_a_killed_command_line(project: Project, phase: str) -> None:
    """The job goes on by itself and commits; whoever comes next finds that."""
    project.train(project.trace("a.jsonl", rows(4)))
    project.trace("b.jsonl", rows(10, 20))
    project.faults(pause_at=phase)
    process = project.start("train", "b.jsonl", "--key", "b")
    until(lambda: len(project.runs()) == 2)
    run = project.wait_for(phase, project.runs()[-1])
    kill(process)
    project.go()
    again = project.train("b.jsonl", "--key", "b")
    assert (again["run"], again["global_step"], again["rows_done"]) == (run.name, 4, 10)
    assert project.trained() == 14
    project.verify()
    assert project.run("train", "attach", run.name).returncode == 0


@pytest.mark.parametrize("phase", ["steps", "saving", "files_stored", "manifest_stored"])
def test_both_killed(project: Project, phase: str) -> None:
    project.trace("b.jsonl", rows(10, 20))
    project.faults(pause_at=phase)
    process = project.start("train", "b.jsonl", "--key", "b")
    run = project.wait_for(phase)
    kill(process)
    job = json.loads((run / "run.json").read_text())["job"]["pid"]
    os.killpg(job, signal.SIGKILL)
    until(lambda: not _living(job))
    assert "died" in project.run("runs", "ls").stdout
    attached = project.run("train", "attach", "last", "--json")
    assert attached.returncode == (0 if phase in SAVED else 1)
    assert "Traceback" not in attached.stderr
    project.faults()
    assert project.train("b.jsonl", "--key", "b")["global_step"] == 3
    assert project.trained() == 10
    project.verify()


def _living(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"


DYING = dying_program("replace", "link", "mkdir")


def test_the_command_line_dies_before_each_of_its_own_acts(project: Project) -> None:
    """Whatever it had written by then, the same command again trains the rows once."""
    (project.path / "dying.py").write_text(DYING)
    deaths = 0
    for n in range(40):
        name = project.trace(f"t{n}.jsonl", rows(4, 10 * n))
        command = project.command("train", name, "--key", name, "--json")
        command[1:3] = [str(project.path / "dying.py"), str(n)]
        done = _call(project, command)
        deaths += done == -signal.SIGKILL
        again = project.train(name, "--key", name)
        assert again["rows_done"] == 4
        assert project.trained() == 4 * (n + 1)
        if done == 0:
            break
    assert deaths >= 5
    project.verify()


def _call(project: Project, command: list[str]) -> int:
    import subprocess

    return subprocess.run(
        command, cwd=project.path, env=project.env, capture_output=True, timeout=60, check=False
    ).returncode


def test_a_run_that_never_got_its_trace(project: Project) -> None:
    """The command line dies right after its intent was written: attach reads the file again, if it is the same."""
    (project.path / "dying.py").write_text(DYING)
    project.trace("a.jsonl", rows(4))
    command = project.command("train", "a.jsonl", "--json")
    for n in range(40):
        command[1:3] = [str(project.path / "dying.py"), str(n)]
        assert _call(project, command) == -signal.SIGKILL
        command = project.command("train", "a.jsonl", "--json")
        if project.runs():
            break
    (project.path / "a.jsonl").rename(project.path / "moved.jsonl")
    missing = project.run("train", "attach", "last", "--json")
    assert missing.returncode == 1
    assert "--trace" in missing.stderr
    project.trace("other.jsonl", rows(4, 50))
    assert project.run("train", "attach", "last", "--trace", "other.jsonl").returncode == 1
    done = project.run("train", "attach", "last", "--trace", "moved.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["global_step"] == 1
    assert len(project.runs()) == 1
    assert project.run("train", "attach", "last").returncode == 0
    assert project.trained() == 4


def test_a_trainer_that_cannot_start_is_said_so(project: Project) -> None:
    project.faults(kill_at="start")
    answer = project.train(project.trace("a.jsonl", rows(4)), code=1)
    assert answer["error"]["code"] in ("no_trainer", "job_died")
    project.faults()
    assert project.train("a.jsonl")["global_step"] == 1


def test_a_full_bucket_keeps_the_work_here(project: Project) -> None:
    """The bucket stops being a folder while the job trains: what is trained is kept and committed later."""
    project.faults(pause_at="step:1")
    process = project.start("train", project.trace("a.jsonl", rows(4)), "--json")
    project.wait_for("step:1")
    bucket = project.path / "checkpoints"
    bucket.rename(project.path / "away")
    bucket.write_text("in the way")
    project.go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 9, err
    answer = json.loads(out)
    assert answer["state"] == "commit_pending"
    assert "train attach" in answer["error"]["next"]
    bucket.unlink()
    (project.path / "away").rename(bucket)
    project.faults()
    assert project.status()["commit_pending"] == [answer["run"]]
    following = project.train(project.trace("b.jsonl", rows(4, 20)))
    assert (following["from_step"], following["global_step"]) == (1, 2)
    assert project.run("train", "attach", answer["run"]).returncode == 0
    assert project.trained() == 8


def test_attach_commits_what_is_pending(project: Project) -> None:
    project.faults(pause_at="step:1")
    process = project.start("train", project.trace("a.jsonl", rows(4)))
    project.wait_for("step:1")
    bucket = project.path / "checkpoints"
    bucket.rename(project.path / "away")
    bucket.write_text("in the way")
    project.go()
    process.communicate(timeout=60)
    assert project.run("train", "attach", "last").returncode != 0
    bucket.unlink()
    (project.path / "away").rename(bucket)
    assert project.run("train", "attach", "last").returncode == 0
    assert project.status()["step"] == 1


@pytest.mark.root
def test_a_read_only_and_a_full_bucket(project: Project) -> None:
    """On a real small file system."""
    import subprocess

    if os.geteuid() != 0:
        assert not os.environ.get("CI"), "CI must run as root"
        pytest.skip("mounting needs root")
    bucket = project.path / "checkpoints"
    bucket.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", bucket], check=True)
    try:
        project.train(project.trace("a.jsonl", rows(4)))
        (bucket / "filler").write_bytes(b"x" * 4096)
        with pytest.raises(OSError, match="space"), (bucket / "filler").open("ab") as file:
            while True:
                file.write(b"x" * 4096)
                file.flush()
        done = project.run("train", project.trace("b.jsonl", rows(4, 20)), "--json")
        assert done.returncode in (1, 9), done.stderr
        assert "Traceback" not in done.stderr
        assert "space" in done.stderr
        (bucket / "filler").unlink()
        assert project.status()["step"] == 1
        subprocess.run(["mount", "-o", "remount,ro", bucket], check=True)
        answer = project.train(project.trace("c.jsonl", rows(4, 40)), code=1)
        assert answer["error"]["code"] == "bucket"
        assert project.status()["step"] == 1
        subprocess.run(["mount", "-o", "remount,rw", bucket], check=True)
        project.train("c.jsonl")
        project.verify()
    finally:
        subprocess.run(["umount", bucket], check=True)


def test_the_periodic_commit_is_what_a_crash_leaves(project: Project) -> None:
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\nsave_every_minutes = 1e-9\n[targets.local]"))
    project.faults(kill_at="step:3")
    answer = project.train(project.trace("a.jsonl", rows(12)), "--key", "a", code=1)
    assert (answer["global_step"], answer["rows_done"], len(answer["losses"])) == (2, 8, 2)
    status = project.status()
    assert (status["step"], status["rows_done"], status["rows_total"]) == (2, 8, 12)
    project.faults()
    rest = project.train("a.jsonl", "--key", "a")
    assert (rest["from_step"], rest["global_step"], rest["rows_done"]) == (2, 3, 12)
    assert project.trained() == 12


def test_a_disk_that_is_full_on_the_way_does_not_end_the_steps(project: Project) -> None:
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\nsave_every_minutes = 1e-9\n[targets.local]"))
    project.faults(full_at=8)
    answer = project.train(project.trace("a.jsonl", rows(12)))
    assert (answer["global_step"], answer["rows_done"]) == (3, 12)
    assert [w["code"] for w in answer["warnings"]] == ["save_failed"]
    assert project.trained() == 12
    project.verify()


def test_a_job_whose_run_was_started_again_writes_no_result_over_the_new_ones(project: Project) -> None:
    project.faults(pause_at="imports")
    process = project.start("train", project.trace("a.jsonl", rows(4)))
    run = project.wait_for("imports")
    kill(process)
    job = run / "job.json"
    job.write_text(job.read_text().replace(json.loads(job.read_text())["attempt"], "of another job"))
    project.go()
    until(lambda: json.loads(project.run("runs", "show", run.name, "--json").stdout)["state_now"] == "died")
    assert not (run / "result.json").exists()
    assert not (run / "exit_code").exists()


def test_another_writer_makes_a_fork_which_is_kept(project: Project, tmp_path: Path) -> None:
    """Two projects on one bucket: the later commit is a fork, exit 4."""
    other = tmp_path / "other"
    other.mkdir()
    twin = Project(other, model=project.model)
    bucket = ("--bucket", str(project.path / "checkpoints"))
    project.faults(pause_at="step:1")
    process = project.start("train", project.trace("a.jsonl", rows(4)), "--json")
    project.wait_for("step:1")
    won = twin.train(twin.trace("b.jsonl", rows(4, 20)), *bucket)
    project.go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    lost = json.loads(out)
    assert lost["forked"]
    status = project.status()
    assert status["head"] == won["checkpoint"]
    assert {c["checkpoint"] for c in status["checkpoints"]} == {won["checkpoint"], lost["checkpoint"]}
    project.verify()


def test_a_dead_jobs_saved_work_becomes_a_fork_when_the_head_has_moved(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    twin = Project(other, model=project.model)
    project.faults(pause_at="saving", kill_at="files_stored")
    process = project.start("train", project.trace("a.jsonl", rows(4)))
    run = project.wait_for("saving")
    kill(process)
    won = twin.train(twin.trace("b.jsonl", rows(4, 20)), "--bucket", str(project.path / "checkpoints"))
    project.go()
    pid = json.loads((run / "run.json").read_text())["job"]["pid"]
    until(lambda: not _living(pid))
    attached = project.run("train", "attach", "last", "--json")
    assert attached.returncode == 4, attached.stderr
    lost = json.loads(attached.stdout)
    status = project.status()
    assert status["head"] == won["checkpoint"]
    assert {c["checkpoint"] for c in status["checkpoints"]} == {won["checkpoint"], lost["checkpoint"]}
    project.verify()
