"""What ends a pod when nobody holds it, what is left of its run then, and pods that fail while a client is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doubles.project import kill, rows, until
from tests.doubles.rented import Rented, ended
from tests.doubles.runpod import Fault

pytestmark = [pytest.mark.pods, pytest.mark.long]


def left_alone(rented: Rented, phase: str, rows_: int = 10, *args: str) -> Path:
    """A call whose client is killed when its job has said that it is in a phase, where it waits; the run."""
    rented.trace("a.jsonl", rows(rows_))
    rented.faults(pause_at=phase)
    process = rented.start("train", "a.jsonl", "--key", "a", *args)
    run = rented.wait_for(phase)
    kill(process)
    return run


@pytest.mark.parametrize("setting", ["lease_minutes", "boot_grace_minutes"])
def test_before_the_job(rented: Rented, setting: str) -> None:
    rented.set(**{setting: 0.03})
    rented.trace("a.jsonl", rows(4))
    process = rented.start("train", "a.jsonl", "--key", "a")
    rented.wait_attempt("made")
    kill(process)
    rented.sandbox.wait_event("ended")
    assert rented.verb("pod", "ls")["pods"] == []
    report = rented.verb("train", "cancel", "last")
    assert (report["state"], report["pod_alive"]) == ("needs_trace", False)
    assert report["pods"][0]["ended_by"] == "pod"
    rented.clean("pod")


def test_a_job_that_says_nothing(rented: Rented) -> None:
    rented.set(stall_minutes=0.02, max_hours=0.02)
    left_alone(rented, "step:2")
    log = rented.attempts()[-1]["pod"]
    rented.sandbox.wait_event("ended", seconds=60)
    assert any("ends this pod: stall" in line for line in rented.sandbox.logs(log))
    report = rented.attach(code=1)
    assert (report["state"], report["rows_done"], report["checkpoint"]) == ("lost_unretrieved", 0, None)
    assert report["pods"][0]["ended_by"] == "pod"
    assert "is gone, and what it trained after row 0 with it" in report["error"]["message"]
    rented.clean("pod")
    assert rented.attach(code=1)["state"] == "lost_unretrieved"
    assert rented.run("train", "attach", "last").returncode == 1


def test_a_deadline_with_a_saved_stop(rented: Rented) -> None:
    run = left_alone(rented, "step:1", 400)
    pod = rented.attempts()[-1]["pod"]
    rented.sandbox.execute(pod, "sh", "-c", "echo MAX_SECONDS=280 >/var/lib/stepctl/limits")
    until(lambda: f"/root/.stepctl/runs/{run.name}/control/stop" in rented.sandbox.written(pod))
    rented.go()
    report = rented.attach(code=5)
    assert (report["state"], report["ended_by"], report["rows_done"]) == ("stopped", "deadline", 4)
    assert report["error"]["message"] == "the pod's deadline came: saved up to row 4 of 400"
    assert report["error"]["next"] == "raise the cap, then the same command with --key a"
    assert rented.trained() == 4
    rented.clean("client")


def test_a_cost_cap_when_nobody_comes_back_in_time(rented: Rented) -> None:
    """The pod is gone with its reason; that its time was over is known here too."""
    rented.set(max_cost_usd=0.2, max_hours=2, retrieve_grace_minutes=0.02)
    left_alone(rented, "step:2")
    rented.go()
    rented.sandbox.wait_event("ended", seconds=60)
    rented.sandbox.advance(3600)
    report = rented.attach(code=5)
    assert (report["state"], report["ended_by"], report["rows_done"]) == ("lost_unretrieved", "cost", 0)
    assert report["error"]["message"].startswith("the pod's cost cap came: pod ")
    assert report["cost_usd"] <= 0.2001
    rented.clean("pod")


def test_nobody_fetches_what_was_trained(rented: Rented) -> None:
    rented.train(rented.trace("first.jsonl", rows(4, 50)))
    rented.set(retrieve_grace_minutes=0.02)
    left_alone(rented, "step:2")
    rented.go()
    rented.sandbox.wait_event("ended", seconds=60, count=2)
    report = rented.attach(code=1)
    assert (report["state"], report["global_step"], report["rows_done"]) == ("lost_unretrieved", 1, 0)
    assert report["error"]["next"] == f"stepctl train {rented.path}/a.jsonl --key a"
    rented.faults()
    rented.set(retrieve_grace_minutes=None)
    assert rented.train("a.jsonl", "--key", "a")["global_step"] == 4
    assert rented.trained() == 14
    rented.clean("client", "pod", "client")


@pytest.mark.parametrize("what", ["trainer", "container"])
def test_the_trainer_dies(rented: Rented, what: str) -> None:
    rented.trace("a.jsonl", rows(12))
    rented.faults(pause_at="step:2")
    process = rented.start("train", "a.jsonl", "--key", "a", "--json")
    rented.wait_for("step:2")
    pod = rented.attempts()[-1]["pod"]
    first = next(each for each in rented.sandbox.processes(pod) if each["inner"] == 1)
    rented.sandbox.signal(pod, "standin.py" if what == "trainer" else f"^{first['command'][:20]}")
    _, err = ended(process, 1)
    assert "the trainer's process died" in err
    assert rented.record()["error"]["code"] == "job_died"
    rented.faults()
    assert rented.train("a.jsonl", "--key", "a")["global_step"] == 3
    assert rented.trained() == 12
    rented.clean("client", "client")


@pytest.mark.parametrize("what", ["vanishes", "EXITED"])
def test_the_pod_goes_under_the_job(rented: Rented, what: str) -> None:
    rented.trace("a.jsonl", rows(12))
    toml = rented.path / "stepctl.toml"
    toml.write_text(toml.read_text() + "[train]\nsave_every_minutes = 0.000001\n")
    rented.faults(pause_at="step:3")
    process = rented.start("train", "a.jsonl", "--key", "a", "--json")
    rented.wait_for("step:3")
    until(lambda: rented.status()["step"] == 2)
    pod = rented.attempts()[-1]["pod"]
    if what == "vanishes":
        rented.sandbox.end(pod)
    else:
        rented.sandbox.set_status(pod, what)
    _, err = ended(process, 1)
    assert (f"pod {pod} is gone" if what == "vanishes" else f"pod {pod} is EXITED") in err
    assert "rows up to 8 of 12 are committed" in err
    assert rented.attempts()[-1]["ended_by"] == ("provider" if what == "vanishes" else "client")
    rented.faults()
    assert rented.train("a.jsonl", "--key", "a")["from_step"] == 2
    assert rented.trained() == 12
    rented.clean("provider" if what == "vanishes" else "client", "client")


def test_a_pod_without_a_gpu_trains_nothing(rented: Rented) -> None:
    rented.set(device=None)
    rented.faults(engine="torch")
    report = rented.train(rented.trace("a.jsonl", rows(4)), code=2)
    assert (report["state"], report["error"]["code"]) == ("failed", "no_device")
    assert "device cuda is not there" in report["error"]["message"]
    assert rented.trained() == 0
    rented.clean("client")


def test_a_client_whose_delete_is_refused_lets_the_pod_end_itself(rented: Rented) -> None:
    """Everything was fetched: it need not wait for the retrieve grace, and its own key may do what ours may not."""
    rented.sandbox.fault(Fault(r"^(DELETE|POST) /v2/pods/\w", who="account", status=403, times=0))
    report = rented.train(rented.trace("a.jsonl", rows(4)), code=8)
    assert (report["rows_done"], report["pod_alive"]) == (4, True)
    pod = rented.attempts()[-1]["pod"]
    rented.sandbox.wait_event("ended", pod)
    assert any("ends this pod: taken" in line for line in rented.sandbox.logs(pod))
    rented.sandbox.clear()
    rented.verb("pod", "rm", "last")
    assert rented.trained() == 4
    rented.clean("pod")
