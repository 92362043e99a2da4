"""What the agent answers, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import ROOT, until

from stepctl import __version__
from stepctl.agent.serve import answer
from stepctl.base.files import make_dirs
from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import PIECE, PROTOCOL, Ask, Started, Told, line
from stepctl.runs.process import identify


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    folder = JobDir(tmp_path / "work/runs/r1")
    make_dirs(folder.path)
    return folder


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir(exist_ok=True)
    return tmp_path / "work"


def ask(workdir: Path, op: str, **fields: Any) -> Told:
    told = answer(workdir, line(Ask(op=op, **fields)))
    # It goes over the line as it is.
    assert msgspec.json.decode(line(told), type=Told) == told
    return told


def running(job: JobDir, *words: str) -> subprocess.Popen[bytes]:
    """A process in a group of its own that is the job's trainer."""
    process = subprocess.Popen(words or ("sleep", "60"), start_new_session=True)
    found = identify(process.pid)
    assert found is not None
    job.process.write_bytes(msgspec.json.encode(Started(pid=found.pid, started=found.started, attempt="a1")))
    return process


def test_it_says_who_it_is(workdir: Path) -> None:
    told = ask(workdir, "hello")
    assert (told.protocol, told.release, told.error) == (PROTOCOL, __version__, "")


def test_over_its_pipes_it_answers_line_by_line_until_the_end(workdir: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "stepctl.agent", "serve", str(workdir)],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(b'{"op": "hello"}\nnonsense\n{"op": "dance"}\n{"op": "hello", "new": 1}\n')
    answers = [json.loads(each) for each in out.splitlines()]
    assert [("error" in each) for each in answers] == [False, True, True, False]
    assert process.returncode == 0


@pytest.mark.parametrize("words", [[], ["dance"], ["serve"], ["pack", "x"], ["unpack"], ["launch", "x"]])
def test_it_says_how_it_is_called(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepctl.agent", *words],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"usage" in done.stderr


def test_a_job_that_is_not_there(workdir: Path) -> None:
    told = ask(workdir, "poll", job=str(workdir / "runs/none")).job
    assert told is not None
    assert (told.alive, told.exit_code, told.events, told.more, told.saved, told.pid) == (
        False,
        None,
        b"",
        False,
        [],
        0,
    )


def test_a_poll_gives_what_is_new_in_pieces(workdir: Path, job: JobDir) -> None:
    events, log = os.urandom(PIECE + 5), os.urandom(3)
    job.events.write_bytes(events)
    job.log.write_bytes(log)
    one = ask(workdir, "poll", job=str(job.path)).job
    assert one is not None
    assert (one.events, one.log, one.more) == (events[:PIECE], log, True)
    two = ask(workdir, "poll", job=str(job.path), events=PIECE, log=1).job
    assert two is not None
    assert (two.events, two.log, two.more) == (events[PIECE:], log[1:], False)
    assert (two.events_size, two.log_size) == (PIECE + 5, 3)
    beyond = ask(workdir, "poll", job=str(job.path), events=9_999_999, log=3).job
    assert beyond is not None
    assert (beyond.events, beyond.more) == (b"", False)


def test_a_job_that_runs_and_one_that_ended(workdir: Path, job: JobDir) -> None:
    process = running(job)
    job.request("stop")
    job.reason.write_text("deadline\n")
    told = ask(workdir, "find", job=str(job.path)).job
    assert told is not None
    assert (told.alive, told.pid, told.attempt, told.requested) == (True, process.pid, "a1", "stop")
    assert told.reason == "deadline"
    ask(workdir, "signal", job=str(job.path), name="TERM")
    assert process.wait(10) == -signal.SIGTERM
    job.exit_code.write_text("1\n")
    job.result.write_text("{}")
    told = ask(workdir, "find", job=str(job.path)).job
    assert told is not None
    assert (told.alive, told.exit_code, told.result) == (False, b"1\n", b"{}")


def test_a_job_of_another_machine_with_the_same_home(workdir: Path, job: JobDir) -> None:
    here = os.uname().nodename
    words = f"the job was started on node-a, and this is {here}"
    note = Started(pid=os.getpid(), started="boot-of-a:7", attempt="a1", host="node-a", view="boot-of-a pid:[1]")
    job.process.write_bytes(msgspec.json.encode(note))
    told = ask(workdir, "hello", job=str(job.path))
    assert (told.error, told.protocol) == (words, PROTOCOL)
    for op, more in (("poll", {}), ("find", {}), ("signal", {"name": "KILL"}), ("remove", {"path": str(job.path)})):
        assert ask(workdir, op, job=str(job.path), **more).error == words
    assert job.process.exists()
    # Its last write says that it is over, wherever it was.
    job.exit_code.write_text("0\n")
    assert ask(workdir, "hello", job=str(job.path)).error == ""
    told_job = ask(workdir, "poll", job=str(job.path)).job
    assert told_job is not None
    assert not told_job.alive
    assert not ask(workdir, "remove", path=str(job.path)).error
    assert not job.path.exists()


@pytest.mark.parametrize("host", ["", None])
def test_a_machine_that_was_restarted_lost_its_job(workdir: Path, job: JobDir, host: str | None) -> None:
    """Also by the note of an older release, which has no host."""
    host = os.uname().nodename if host is None else host
    note = Started(pid=os.getpid(), started="the boot before:7", attempt="a1", host=host, view="the boot before pid")
    job.process.write_bytes(msgspec.json.encode(note))
    assert ask(workdir, "hello", job=str(job.path)).error == ""
    told = ask(workdir, "poll", job=str(job.path)).job
    assert told is not None
    assert not told.alive
    assert not ask(workdir, "remove", path=str(job.path)).error


def test_a_machine_that_has_another_name_now(workdir: Path, job: JobDir) -> None:
    from stepctl.agent import launch

    process = running(job)
    note = msgspec.json.decode(job.process.read_bytes(), type=Started)
    note = msgspec.structs.replace(note, host="its-old-name", view=launch._view())
    job.process.write_bytes(msgspec.json.encode(note))
    told = ask(workdir, "poll", job=str(job.path)).job
    assert told is not None
    assert told.alive
    process.kill()
    process.wait()
    told = ask(workdir, "poll", job=str(job.path)).job
    assert told is not None
    assert not told.alive


def test_a_number_that_another_process_has_now(workdir: Path, job: JobDir) -> None:
    job.process.write_bytes(msgspec.json.encode(Started(pid=os.getpid(), started="long ago", attempt="a1")))
    told = ask(workdir, "find", job=str(job.path)).job
    assert told is not None
    assert not told.alive
    ask(workdir, "signal", job=str(job.path), name="KILL")  # and this test goes on


def test_a_signal_goes_to_the_whole_group(workdir: Path, job: JobDir, tmp_path: Path) -> None:
    child = tmp_path / "child"
    process = running(job, "sh", "-c", f"sleep 60 & echo $! > {child}; wait")
    until(lambda: child.exists() and child.read_text().strip())
    ask(workdir, "signal", job=str(job.path), name="KILL")
    assert process.wait(10) == -signal.SIGKILL
    until(lambda: identify(int(child.read_text())) is None)


@pytest.mark.parametrize("name", ["HUP", "", "9"])
def test_other_signals_are_refused(workdir: Path, job: JobDir, name: str) -> None:
    assert ask(workdir, "signal", job=str(job.path), name=name).error


def test_requests_are_two(workdir: Path, job: JobDir) -> None:
    for what in ("stop", "cancel"):
        assert not ask(workdir, "request", job=str(job.path), what=what).error
        assert job.requested() == what
    assert ask(workdir, "request", job=str(job.path), what="reason").error


def test_whole_checkpoints_of_the_run_are_named(workdir: Path, job: JobDir) -> None:
    job.job.write_text(json.dumps({"run": "r1", "lineage": "main"}))
    bucket = job.bucket / "main/checkpoints"
    for name in ("00000002-r1", "00000010-r1", "00000003-r2", "00000001-r0"):
        make_dirs(bucket / name)
        (bucket / name / "manifest.json").write_text("{}")
    make_dirs(bucket / "00000011-r1")  # no manifest: not whole
    make_dirs(job.out / "00000012-r1")
    (job.out / "00000012-r1/manifest.json").write_text("{}")
    told = ask(workdir, "find", job=str(job.path)).job
    assert told is not None
    names = ["bucket/main/checkpoints/00000002-r1", "bucket/main/checkpoints/00000010-r1", "out/00000012-r1"]
    assert told.saved == names


def test_a_lease_changes_with_every_request(workdir: Path, tmp_path: Path) -> None:
    lease, seen = tmp_path / "lease", set()
    for op in ("hello", "poll", "find"):
        ask(workdir, op, lease=str(lease), job=str(workdir / "runs/none"))
        seen.add(lease.read_text())
    assert len(seen) == 3
    assert ask(workdir, "hello", lease=str(tmp_path / "none/lease")).error == ""


def test_have_tells_by_what_a_folder_was_made_from(workdir: Path) -> None:
    folder = workdir / "models/m"
    assert not ask(workdir, "have", path=str(folder)).yes
    make_dirs(folder)
    assert ask(workdir, "have", path=str(folder)).yes
    assert not ask(workdir, "have", path=str(folder), digest="d").yes
    (workdir / "models/.m.from").write_text("d")
    assert ask(workdir, "have", path=str(folder), digest="d").yes
    assert not ask(workdir, "have", path=str(folder), digest="e").yes


def test_only_what_is_below_the_working_directory_is_removed(workdir: Path, job: JobDir, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    (workdir / "link").symlink_to(outside)
    tries = [outside, workdir / "link", workdir / "link/kept", workdir, workdir / "../outside", Path("/")]
    for path in tries:
        assert ask(workdir, "remove", path=str(path)).error, path
    assert (outside / "kept").exists()
    (job.path / "link").symlink_to(outside)
    (job.path / "file").write_text("x")
    assert not ask(workdir, "remove", path=str(job.path)).error
    assert not job.path.exists()
    assert (outside / "kept").exists()
    assert not ask(workdir, "remove", path=str(job.path)).error


def test_a_job_that_runs_is_not_removed(workdir: Path, job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepctl.agent import jobs

    monkeypatch.setattr(jobs, "_END_SEC", 0.1)
    process = running(job)
    assert "still runs" in ask(workdir, "remove", path=str(job.path)).error
    assert job.process.exists()
    process.kill()
    process.wait()
    assert not ask(workdir, "remove", path=str(job.path)).error


def test_what_a_killed_removal_left_goes_with_the_next(workdir: Path, job: JobDir) -> None:
    (workdir / "runs/.tmp-gone-1/x").mkdir(parents=True)
    ask(workdir, "remove", path=str(job.path))
    assert list((workdir / "runs").iterdir()) == []
