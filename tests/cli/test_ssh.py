"""Whole calls on a machine behind a real sshd, as a user makes them; the stand-in trains there."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.doubles.project import Project, dying_program, kill, rows, until
from tests.doubles.relay import Relay
from tests.doubles.sshd import Sshd

from stepctl.targets.ssh.machine import SshMachine

pytestmark = pytest.mark.sshd

PHASES = ("judging", "model", "steps", "step:2", "step:4", "saving", "files_stored", "manifest_stored")
SENTINEL = "zqj-sentinel"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("sshd")) as server:
        server.wrapper()
        yield server


class Away(Project):
    """A project whose target ``box`` is behind sshd, with a folder of its own there."""

    def __init__(self, folder: Path, sshd: Sshd, port: int | None = None, **options: object) -> None:
        self.there = sshd.home / folder.name
        self.there.mkdir()
        settings = {
            "kind": "ssh",
            "host": "127.0.0.1",
            "port": port or sshd.port,
            "user": sshd.user,
            "key": str(sshd.key),
            "known_hosts": str(sshd.known_hosts),
            "workdir": str(self.there),
            "venv": str(sshd.folder / "venv"),
            **options,
        }
        box = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
        super().__init__(folder, toml=f'target = "box"\n[targets.box]\n{box}')

    def faults(self, **faults: Any) -> None:
        (self.there / "go").unlink(missing_ok=True)
        (self.there / "faults.json").write_text(json.dumps(faults))

    def go(self) -> None:
        (self.there / "go").touch()

    def jobs(self) -> list[Path]:
        return sorted((self.there / "runs").glob("*"))


@pytest.fixture
def away(tmp_path: Path, sshd: Sshd) -> Away:
    return Away(tmp_path, sshd)


def attach(project: Project, code: int = 0) -> dict[str, Any]:
    done = project.run("train", "attach", "last", "--json")
    assert done.returncode == code, (done.returncode, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_calls_extend_the_lineage_here(away: Away, sshd: Sshd) -> None:
    data = rows(8)
    data[0]["messages"][0]["content"] += f" {SENTINEL}"
    first = away.train(away.trace("a.jsonl", data), "--key", "a")
    assert (first["state"], first["global_step"], first["target"]) == ("done", 2, "box")
    second = away.train(away.trace("b.jsonl", rows(5, 20)))
    assert (second["from_step"], second["global_step"], second["resumed_from"]) == (2, 4, first["checkpoint"])
    assert away.trained() == 13
    assert away.train("a.jsonl", "--key", "a")["replayed"]
    away.verify()
    assert away.jobs() == []
    assert not any(SENTINEL in path.read_text(errors="replace") for path in away.there.rglob("*") if path.is_file())
    assert not any(
        SENTINEL in path.read_text(errors="replace") for path in (away.path / "runs").rglob("*") if path.is_file()
    )
    assert not list((away.path / "runs").glob("*/stage")) + list((away.path / "runs").glob("*/out/*"))


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_command_line(away: Away, phase: str) -> None:
    """The job goes on there; whoever comes next brings its work home, once."""
    away.train(away.trace("a.jsonl", rows(4)))
    away.trace("b.jsonl", rows(10, 20))
    away.faults(pause_at=phase)
    process = away.start("train", "b.jsonl", "--key", "b")
    until(lambda: len(away.runs()) == 2)
    run = away.wait_for(phase, away.runs()[-1])
    kill(process)
    away.go()
    answer = away.train("b.jsonl", "--key", "b") if phase != "steps" else attach(away)
    assert (answer["run"], answer["global_step"], answer["rows_done"]) == (run.name, 4, 10)
    assert away.trained() == 14
    away.verify()
    assert away.jobs() == []


@pytest.mark.long
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_job(away: Away, phase: str) -> None:
    away.train(away.trace("a.jsonl", rows(4)))
    away.trace("b.jsonl", rows(10, 20))
    away.faults(kill_at=phase)
    done = away.run("train", "b.jsonl", "--key", "b", "--json")
    assert "Traceback" not in done.stderr
    saved = phase in ("files_stored", "manifest_stored")
    assert done.returncode == (0 if saved else 1), done.stderr
    assert away.status()["step"] == (4 if saved else 1)
    away.faults()
    assert away.train("b.jsonl", "--key", "b")["global_step"] == 4
    assert away.trained() == 14
    away.verify()


@pytest.mark.long
@pytest.mark.parametrize("number", range(0, 60, 12))
def test_killed_before_any_write_of_the_command_line(away: Away, number: int) -> None:
    """Every point at which the record, the freight or what was fetched is written here."""
    away.trace("b.jsonl", rows(10))
    program = away.path / "dying.py"
    program.write_text(dying_program("replace", "rename", "fsync", "mkdir", "unlink", "rmdir"))
    away.command = lambda *args: [  # type: ignore[method-assign]
        __import__("sys").executable,
        str(program),
        str(number),
        *map(str, args),
    ]
    away.run("train", "b.jsonl", "--key", "b")
    del away.command  # type: ignore[method-assign]
    answer = away.train("b.jsonl", "--key", "b")
    assert (answer["global_step"], answer["rows_done"]) == (3, 10)
    assert away.trained() == 10
    away.verify()
    assert away.jobs() == []


def test_ctrl_c_only_leaves(away: Away) -> None:
    away.trace("b.jsonl", rows(10))
    away.faults(pause_at="step:2")
    process = away.start("train", "b.jsonl")
    away.wait_for("step:2")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "goes on" in err
    assert len(away.jobs()) == 1
    away.go()
    assert attach(away)["global_step"] == 3
    assert away.trained() == 10


def test_stop_saves_and_cancel_does_not(away: Away) -> None:
    away.trace("b.jsonl", rows(10))
    away.faults(pause_at="step:1")
    process = away.start("train", "b.jsonl", "--key", "b", "--json")
    run = away.wait_for("step:1")
    stopping = away.start("train", "stop", run.name)
    until(lambda: (run / "control/stop").exists())
    until(lambda: list(away.there.glob("runs/*/control/stop")))
    away.go()
    out, err = process.communicate(timeout=60)
    stopping.communicate(timeout=60)
    assert process.returncode == 6, err
    assert json.loads(out)["rows_done"] == 4
    assert away.trained() == 4
    away.faults(pause_at="step:2")
    process = away.start("train", "b.jsonl", "--key", "b", "--json")
    until(lambda: len(away.runs()) == 2)
    run = away.wait_for("step:2", away.runs()[-1])
    cancelling = away.start("train", "cancel", run.name)
    until(lambda: list(away.there.glob("runs/*/control/cancel")))
    away.go()
    process.communicate(timeout=60)
    cancelling.communicate(timeout=60)
    assert process.returncode == 7
    assert away.trained() == 4
    away.verify()


def test_what_is_saved_on_the_way_is_committed_on_the_way(away: Away) -> None:
    toml = away.path / "stepctl.toml"
    toml.write_text(toml.read_text() + "[train]\nsave_every_minutes = 0.000001\n")
    away.trace("b.jsonl", rows(16))
    away.faults(pause_at="step:4")
    process = away.start("train", "b.jsonl", "--key", "b", "--json")
    away.wait_for("step:4")
    until(lambda: away.status()["step"] == 3)
    process.kill()
    process.communicate()
    pid = json.loads((away.runs()[-1] / "run.json").read_text())["job"]["pid"]
    os.killpg(pid, signal.SIGKILL)
    answer = attach(away, code=1)
    assert (answer["rows_done"], answer["global_step"]) == (12, 3)
    away.faults()
    assert away.train("b.jsonl", "--key", "b")["from_step"] == 3
    assert away.trained() == 16
    away.verify()


def test_a_lost_connection_is_sought_again(tmp_path: Path, sshd: Sshd) -> None:
    relay = Relay(sshd.port)
    sshd.trust(relay.port)
    away = Away(tmp_path, sshd, port=relay.port)
    away.trace("b.jsonl", rows(10))
    away.faults(pause_at="step:2")
    process = away.start("train", "b.jsonl", "--json")
    run = away.wait_for("step:2")
    relay.refusing = True
    relay.reset()
    away.go()
    until(lambda: (away.there / "runs" / run.name / "exit_code").exists())
    relay.refusing = False
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["losses"] == [1.0, 0.5, pytest.approx(1 / 3)]
    assert "lost" in err
    away.verify()


def test_a_start_that_was_cut_is_repeated_as_its_message_says(tmp_path: Path, sshd: Sshd) -> None:
    relay = Relay(sshd.port)
    sshd.trust(relay.port)
    away = Away(tmp_path, sshd, port=relay.port)
    away.trace("b.jsonl", rows(10))
    real = SshMachine._launched

    def cut(self: SshMachine, *args: Any) -> Any:
        relay.cut()
        return real(self, *args)

    with mock.patch.object(SshMachine, "_launched", cut):
        done = away.call("train", "b.jsonl", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["safe"]) == (1, "ssh_lost", "nothing was trained")
    assert error["next"] == "call stepctl train again with the same trace"
    # To follow that run leads nowhere: it is over.
    assert attach(away, code=1)["error"]["next"] == error["next"]
    relay.mend()
    assert away.train("b.jsonl")["state"] == "done"
    assert away.trained() == 10
    away.verify()
    relay.close()


def test_a_bucket_that_refuses_keeps_the_work_here(away: Away) -> None:
    away.train(away.trace("a.jsonl", rows(4)))
    away.trace("b.jsonl", rows(8, 20))
    away.faults(pause_at="step:3")
    process = away.start("train", "b.jsonl", "--json")
    until(lambda: len(away.runs()) == 2)
    away.wait_for("step:3", away.runs()[-1])
    lineage = away.path / "checkpoints"
    lineage.rename(away.path / "elsewhere")
    lineage.write_text("in the way")
    away.go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 9, (out, err)
    lineage.unlink()
    (away.path / "elsewhere").rename(lineage)
    assert attach(away)["state"] == "done"
    assert away.trained() == 12
    away.verify()


def test_machines_that_cannot_be_reached(away: Away, tmp_path: Path, sshd: Sshd) -> None:
    away.trace("b.jsonl", rows(4))
    toml = away.path / "stepctl.toml"
    good = toml.read_text()
    toml.write_text(good.replace(f"port = {sshd.port}", "port = 1"))
    done = away.run("train", "b.jsonl", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "ssh_unreachable"
    (tmp_path / "nobody").write_text("")
    toml.write_text(good.replace(str(sshd.known_hosts), str(tmp_path / "nobody")))
    done = away.run("train", "b.jsonl", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "ssh_unknown_host_key"
    assert "ssh-keyscan" in done.stderr
    toml.write_text(good)
    assert away.train("b.jsonl")["global_step"] == 1
    away.verify()


def test_a_plan_says_where(away: Away) -> None:
    done = away.run("train", away.trace("b.jsonl", rows(4)), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "on: 127.0.0.1, over SSH" in done.stdout
    assert not away.runs()


def test_a_machine_that_is_gone_for_good_can_be_given_up(away: Away, sshd: Sshd) -> None:
    away.train(away.trace("a.jsonl", rows(4)))
    away.trace("b.jsonl", rows(8, 20))
    away.faults(pause_at="step:3")
    process = away.start("train", "b.jsonl", "--key", "b")
    until(lambda: len(away.runs()) == 2)
    run = away.wait_for("step:3", away.runs()[-1])
    refused = away.run("train", "cancel", run.name, "--abandon")
    assert refused.returncode == 2
    assert "is following run" in refused.stderr
    kill(process)
    pid = json.loads((run / "run.json").read_text())["job"]["pid"]
    os.killpg(pid, signal.SIGKILL)
    sshd.stop()
    try:
        given_up = away.run("train", "cancel", run.name, "--abandon", "--json")
    finally:
        sshd.start()
    assert given_up.returncode == 0, given_up.stderr
    assert json.loads(given_up.stdout)["state"] == "cancelled"
    away.faults()
    assert away.train("b.jsonl", "--key", "b")["from_step"] == 1
    assert away.trained() == 12
    away.verify()


def test_a_run_is_started_again_on_its_own_target(away: Away) -> None:
    """The examples never arrived; meanwhile stepctl.toml lost the target."""
    away.trace("b.jsonl", rows(8))
    away.faults(pause_at="step:1")
    program = away.path / "dying.py"
    program.write_text(dying_program("replace"))
    command = away.command
    for number in range(20):
        away.command = lambda *args, number=number: [  # type: ignore[method-assign]
            command()[0],
            str(program),
            str(number),
            *map(str, args),
        ]
        process = away.start("train", "b.jsonl", "--detach")
        process.communicate(timeout=60)
        if away.runs() and process.returncode == -9:
            break
    away.command = command  # type: ignore[method-assign]
    away.faults()
    toml = away.path / "stepctl.toml"
    lines = toml.read_text().replace('target = "box"', "")
    toml.write_text(lines.partition("[targets.box]")[0] + lines[lines.index("[targets.local]") :])
    answer = attach(away)
    assert (answer["state"], answer["target"], answer["global_step"]) == ("done", "box", 2)
    assert json.loads((away.runs()[-1] / "run.json").read_text())["target_options"]["kind"] == "ssh"
