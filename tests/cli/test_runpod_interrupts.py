"""Ctrl-C and TERM in every phase of a call on a rented pod: before the job they end the pod, then they only leave."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time

import pytest
from tests.doubles.project import rows, until
from tests.doubles.rented import Rented, ended
from tests.doubles.runpod import Fault

pytestmark = pytest.mark.pods

CREATES, DELETES = "^POST /v2/pods$", "^DELETE /v2/pods"


class Terminal:
    """A command line on a terminal of its own."""

    def __init__(self, project: Rented, *args: str) -> None:
        self.fd, side = pty.openpty()
        self.said = ""
        self.process = subprocess.Popen(
            project.command(*args),
            cwd=project.path,
            env={**project.env, "TERM": "dumb"},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            # What is opened first in a session becomes its terminal.
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509
        )
        os.close(side)

    def read(self) -> bool:
        try:
            self.said += os.read(self.fd, 1 << 16).decode(errors="replace")
        except OSError:  # the other side is closed
            return False
        return True

    def wait_for(self, text: str) -> None:
        while text not in self.said:
            assert self.read(), self.said

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def end(self) -> int:
        while self.read():
            pass
        os.close(self.fd)
        return self.process.wait(30)


@pytest.mark.parametrize("answer", ["\x03", "n\n", "\x04"])
def test_a_plan_that_is_not_agreed_to_rents_nothing(rented: Rented, answer: str) -> None:
    rented.trace("a.jsonl", rows(4))
    terminal = Terminal(rented, "train", "a.jsonl", "--key", "a")
    terminal.wait_for("Rent it?")
    assert "rent: NVIDIA" in terminal.said and "at most: $" in terminal.said
    terminal.type(answer)
    assert terminal.end() == 7, terminal.said
    assert "nothing was rented" in terminal.said and "Traceback" not in terminal.said
    assert rented.record()["state"] == "cancelled"
    assert rented.sandbox.calls(CREATES) == []
    rented.clean()


def test_a_plan_that_is_agreed_to_and_ctrl_c_on_the_terminal(rented: Rented) -> None:
    rented.sandbox.quirks(boot=3600)
    rented.trace("a.jsonl", rows(4))
    terminal = Terminal(rented, "train", "a.jsonl")
    terminal.wait_for("Rent it?")
    terminal.type("y\n")
    terminal.wait_for("waiting for pod")
    terminal.type("\x03")
    assert terminal.end() == 7, terminal.said
    rented.clean("client")


@pytest.mark.parametrize(
    ("phase", "number"), [("creating", signal.SIGINT), ("booting", signal.SIGTERM), ("installing", signal.SIGINT)]
)
def test_before_the_job_it_ends_the_pod_however_often_it_is_pressed(
    rented: Rented, phase: str, number: signal.Signals
) -> None:
    sandbox = rented.sandbox
    sandbox.fault(Fault(DELETES, hold=True))
    if phase == "creating":
        sandbox.fault(Fault(CREATES, hold=True, when="after"))
    elif phase == "booting":
        sandbox.quirks(boot=3600)
    else:
        rented.stage.hold()
    rented.trace("a.jsonl", rows(4))
    process = rented.start("train", "a.jsonl", "--key", "a", "--json")
    if phase == "creating":
        sandbox.wait_held()
    elif phase == "booting":
        rented.wait_attempt("made")
    else:
        name = rented.wait_attempt("ready")["name"]
        until(lambda: any("venv/bin/python" in each["command"] for each in sandbox.processes(name)))
    process.send_signal(number)
    until(lambda: any("DELETE" in each["target"] for each in sandbox.held()))
    for _ in range(2):
        process.send_signal(number)
        time.sleep(0.05)
    sandbox.release()
    _, err = ended(process, 7)
    assert "the machine is let go, and nothing was trained" in err
    rented.clean("client")
    rented.stage.clear()
    sandbox.quirks(boot=0)
    assert rented.train("a.jsonl", "--key", "a")["global_step"] == 1
    assert rented.trained() == 4


def test_once_the_job_runs_it_only_leaves(rented: Rented) -> None:
    rented.faults(pause_at="step:2")
    rented.trace("a.jsonl", rows(10))
    process = rented.start("train", "a.jsonl")
    rented.wait_for("step:2")
    process.send_signal(signal.SIGINT)
    _, err = ended(process, 130)
    attempt = rented.attempts()[-1]
    until_then = attempt["deadline_at"][:19]
    assert f"pod {attempt['pod']} goes on at $0.27 an hour; it ends itself at {until_then} UTC" in err
    assert f"stepctl train attach {rented.runs()[-1].name}" in err
    assert len(rented.sandbox.pods()) == 1
    rented.go()
    report = rented.attach()
    assert (report["global_step"], report["cost_usd"] > 0) == (3, True)
    assert rented.trained() == 10
    rented.clean("client")


def test_while_the_pod_is_deleted_it_finishes_the_delete(rented: Rented) -> None:
    rented.sandbox.fault(Fault(DELETES, hold=True))
    rented.trace("a.jsonl", rows(4))
    process = rented.start("train", "a.jsonl", "--json")
    rented.sandbox.wait_held()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
        time.sleep(0.05)
    rented.sandbox.release()
    ended(process, 0)
    assert rented.trained() == 4
    rented.clean("client")
