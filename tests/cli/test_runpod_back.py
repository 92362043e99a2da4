"""Coming back to a rented run: from another terminal, and after the client was killed at any moment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from tests.doubles.project import dying_program, kill, rows, until
from tests.doubles.rented import Rented, ended
from tests.doubles.runpod import Fault

pytestmark = [pytest.mark.pods, pytest.mark.long]

CREATES, DELETES = "^POST /v2/pods$", "^DELETE /v2/pods"


@pytest.mark.parametrize(("phase", "verb"), [("booting", "stop"), ("installing", "cancel")])
def test_ended_from_another_terminal_before_the_job(rented: Rented, phase: str, verb: str) -> None:
    if phase == "booting":
        rented.sandbox.quirks(boot=3600)
    else:
        rented.stage.hold()
    rented.trace("a.jsonl", rows(4))
    process = rented.start("train", "a.jsonl", "--json")
    rented.wait_attempt("made" if phase == "booting" else "ready")
    other = rented.start("train", verb, "last", "--json")
    until(lambda: list(rented.path.glob("runs/*/control/cancel")))
    rented.stage.clear()
    out, _ = ended(process, 7)
    assert json.loads(out)["state"] == "cancelled"
    out, err = ended(other, 0)
    assert json.loads(out)["state"] == "cancelled"
    assert "the machine is let go" in err
    rented.clean("client")


def test_attached_to_while_it_boots(rented: Rented) -> None:
    rented.sandbox.quirks(boot=3600)
    rented.trace("a.jsonl", rows(6))
    process = rented.start("train", "a.jsonl", "--json")
    rented.wait_attempt("made")
    assert rented.attach("--timeout", "0.1", code=124)["state"] == "running"
    other = rented.start("train", "attach", "last", "--json")
    rented.sandbox.advance(3600)
    for each in (process, other):
        out, _ = ended(each, 0)
        assert json.loads(out)["global_step"] == 2
    rented.clean("client")


def test_stopped_from_another_terminal_when_the_settings_have_lost_the_target(rented: Rented) -> None:
    rented.trace("a.jsonl", rows(10))
    rented.faults(pause_at="step:1")
    process = rented.start("train", "a.jsonl", "--key", "a", "--json")
    run = rented.wait_for("step:1")
    toml = (rented.path / "stepctl.toml").read_text()
    (rented.path / "stepctl.toml").write_text(toml.split("[targets.cloud]")[0].replace('target = "cloud"', ""))
    other = rented.start("train", "stop", run.name, "--json")
    pod = rented.attempts()[-1]["pod"]
    until(lambda: f"/root/.stepctl/runs/{run.name}/control/stop" in rented.sandbox.written(pod))
    rented.go()
    out, _ = ended(other, 0)
    assert json.loads(out)["rows_done"] == 4
    out, err = ended(process, 6)
    report = json.loads(out)
    assert (report["state"], report["rows_done"], report["pods"][0]["ended_by"]) == ("stopped", 4, "client")
    assert "--key a trains the other rows" in err
    assert rented.trained() == 4
    rented.clean("client")
    for verb in ("stop", "cancel"):  # of a run that has ended they change nothing
        assert rented.verb("train", verb, "last")["state"] == "stopped"
    assert rented.attach(code=6)["rows_done"] == 4


def test_a_stop_without_a_save_becomes_a_cancel(rented: Rented) -> None:
    rented.set(stall_minutes=0.02)
    rented.trace("a.jsonl", rows(10))
    rented.faults(pause_at="step:1")
    process = rented.start("train", "a.jsonl", "--json")
    rented.wait_for("step:1")
    done = rented.run("train", "stop", "last")
    assert done.returncode == 0, done.stderr
    assert "nothing was saved in 0.02 minutes: the stop becomes a cancel" in done.stderr
    ended(process, 7)
    assert rented.trained() == 0
    rented.clean("client")


def test_a_job_that_cannot_be_reached_is_cancelled_with_its_pod(rented: Rented) -> None:
    rented.trace("a.jsonl", rows(10))
    rented.faults(pause_at="step:1")
    process = rented.start("train", "a.jsonl", "--detach")
    ended(process, 0)
    attempt = rented.attempts()[-1]
    rented.sandbox.signal(attempt["pod"], "^sshd|/sshd|sshd-session")
    done = rented.verb("train", "cancel", "last")
    assert (done["state"], done["pods"][0]["state"]) == ("cancelled", "gone")
    rented.clean("client")


def held_create(rented: Rented) -> Callable[[], object]:
    rented.sandbox.fault(Fault(CREATES, hold=True, when="after"))
    return rented.sandbox.wait_held


def booting(rented: Rented) -> Callable[[], object]:
    rented.sandbox.quirks(boot=3600)
    return lambda: rented.wait_attempt("made")


def installing(rented: Rented) -> Callable[[], object]:
    rented.stage.hold()
    return lambda: rented.wait_attempt("ready")


@pytest.mark.parametrize("phase", [held_create, booting, installing])
def test_killed_before_the_job(rented: Rented, phase: Callable[[Rented], Callable[[], object]]) -> None:
    """Whoever comes next ends the pod; then the run is started again where its examples are still there."""
    there = phase(rented)
    rented.trace("a.jsonl", rows(6))
    process = rented.start("train", "a.jsonl", "--key", "a")
    there()
    kill(process)
    rented.sandbox.release(lost=True)
    rented.sandbox.quirks(boot=0)
    rented.stage.clear()
    if phase is booting:
        other = rented.train(rented.trace("b.jsonl", rows(4, 20)))
        assert (other["from_step"], other["global_step"]) == (0, 1)
        assert rented.record(rented.runs()[0])["state"] == "needs_trace"
        assert rented.train("a.jsonl", "--key", "a")["global_step"] == 3
        assert rented.trained() == 10
        rented.clean("client", "client", "client")
        return
    report = rented.attach()
    assert (report["state"], report["global_step"], len(rented.runs())) == ("done", 2, 1)
    assert [each["state"] for each in report["pods"]] == ["gone", "gone"]
    assert rented.trained() == 6
    rented.clean("client", "client")


def test_killed_while_the_job_runs_and_another_trace_comes(rented: Rented) -> None:
    rented.trace("a.jsonl", rows(10))
    rented.trace("b.jsonl", rows(4, 20))
    rented.faults(pause_at="step:2")
    process = rented.start("train", "a.jsonl", "--key", "a")
    rented.wait_for("step:2")
    kill(process)
    other = rented.start("train", "b.jsonl", "--json")
    until(lambda: len(rented.sandbox.events("created")) == 1 and other.poll() is None)
    rented.go()
    out, err = ended(other, 0)
    report = json.loads(out)
    assert (report["from_step"], report["global_step"]) == (3, 4)
    assert f"waiting for run {rented.runs()[0].name}" in err
    assert rented.record(rented.runs()[0])["state"] == "done"
    assert rented.trained() == 14
    rented.clean("client", "client")


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_it_deletes_the_pod(rented: Rented, when: str) -> None:
    rented.sandbox.fault(Fault(DELETES, hold=True, when=when))  # type: ignore[arg-type]
    rented.trace("a.jsonl", rows(6))
    process = rented.start("train", "a.jsonl", "--key", "a")
    rented.sandbox.wait_held()
    kill(process)
    rented.sandbox.release(lost=True)
    report = rented.attach() if when == "before" else rented.train("a.jsonl", "--key", "a")
    assert (report["state"], report["rows_done"]) == ("done", 6)
    assert [each["ended_by"] for each in rented.attempts()] == ["client"]
    assert rented.record()["state"] == "done"
    assert rented.trained() == 6
    rented.clean("client")


@pytest.mark.parametrize("number", [5, 25, 45, 60, 75, 90])
def test_killed_before_any_write_of_the_command_line(rented: Rented, number: int) -> None:
    rented.trace("b.jsonl", rows(10))
    program = rented.path / "dying.py"
    program.write_text(dying_program("replace", "rename", "fsync", "mkdir", "unlink", "rmdir"))
    rented.command = lambda *args: [sys.executable, str(program), str(number), *map(str, args)]  # type: ignore[method-assign]
    rented.run("train", "b.jsonl", "--key", "b")
    del rented.command  # type: ignore[method-assign]
    answer = rented.train("b.jsonl", "--key", "b")
    assert (answer["global_step"], answer["rows_done"]) == (3, 10)
    assert rented.trained() == 10
    rented.clean(*["client"] * len(rented.sandbox.events("created")))
