"""A job on a machine behind a real sshd, from its start to what is left of it."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.doubles.project import said, until
from tests.doubles.sshd import Sshd
from tests.targets.ssh.rig import SENTINEL, Rig

from stepctl.base.errors import StepctlError
from stepctl.base.files import sha256_bytes
from stepctl.jobs.events import Transfer
from stepctl.jobs.spec import ModelSpec, decode_job
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Freight
from stepctl.targets.ssh import machine as module
from stepctl.targets.ssh.channel import Stream
from stepctl.targets.ssh.transfer import TransferFailed

pytestmark = pytest.mark.sshd


def in_a_child(work: Callable[[], object]) -> int:
    """Do it in a process that is then killed as by kill -9; its number."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def test_a_job_runs_there_and_its_files_come_here(rig: Rig) -> None:
    machine = rig.machine()
    process = rig.begin(machine)
    assert machine.find() == process
    result = rig.follow(machine)
    assert (result.state, result.step, result.rows_done) == ("done", 4, 8), result.error
    rig.same()
    [folder] = machine.retrieve("main", [])
    assert folder == rig.job.out / str(result.checkpoint)
    assert json.loads((folder / "optimizer.safetensors").read_bytes())["trained"] == 8
    assert machine.retrieve("main", []) == [folder]
    assert machine.retrieve("main", [folder.name]) == []
    machine.release()
    assert not rig.there.path.exists()
    machine.release()
    assert rig.machine().find() is None
    machine.close()
    assert rig.notices == []


def test_the_job_there_names_places_of_the_machine(rig: Rig) -> None:
    machine = rig.machine()
    init = rig.folder / "init"
    init.mkdir()
    (init / "adapter_model.safetensors").write_text("an adapter")
    stage = rig.folder / "stage"
    (stage / "main/checkpoints/00000001-x").mkdir(parents=True)
    (stage / "main/checkpoints/00000001-x/manifest.json").write_text("{}")
    machine.prepare(Freight(stage=stage, init=init, model=rig.model, model_digest="files:" + "ab" * 32))
    machine.start(rig.spec(init_from=str(init)))
    told = decode_job(rig.there.job.read_bytes())
    assert told.bucket == str(rig.there.bucket)
    assert told.init_from == str(rig.there.init)
    assert told.model == ModelSpec(source=str(rig.workdir / "models" / f"files-{'ab' * 32}"))
    assert (rig.there.bucket / "main/checkpoints/00000001-x/manifest.json").read_text() == "{}"
    assert (rig.there.init / "adapter_model.safetensors").read_text() == "an adapter"
    assert sorted(p.name for p in Path(told.model.source).iterdir()) == sorted(p.name for p in rig.model.iterdir())
    machine.send(rig.payload)
    assert rig.follow(machine).state == "done"
    machine.close()


def test_freight_goes_once(rig: Rig) -> None:
    machine = rig.machine()
    init = rig.folder / "init"
    init.mkdir()
    (init / "f").write_text("one")
    freight = Freight(init=init, model=rig.model, model_digest="files:1")
    machine.prepare(freight)
    unpacked = [c for c in rig.sshd.commands() if " unpack " in c]
    rig.machine().prepare(freight)
    assert [c for c in rig.sshd.commands() if " unpack " in c] == unpacked
    (init / "f").write_text("two")
    machine.prepare(freight)
    assert (rig.there.init / "f").read_text() == "two"
    assert len([c for c in rig.sshd.commands() if " unpack " in c]) == len(unpacked) + 1
    machine.close()


def test_a_job_with_a_bucket_of_its_own_keeps_it(rig: Rig) -> None:
    machine = rig.machine(staged=False)
    assert not machine.staged
    rig.begin(machine)
    assert rig.follow(machine).state == "done"
    assert list((rig.folder / "checkpoints/main/checkpoints").iterdir())
    assert machine.retrieve("main", []) == []
    machine.close()


def test_what_could_not_be_committed_there_is_fetched(rig: Rig) -> None:
    (rig.folder / "checkpoints").write_text("no folder")
    machine = rig.machine(staged=False)
    rig.begin(machine)
    result = rig.follow(machine)
    assert result.state == "commit_pending"
    [folder] = machine.retrieve("main", [])
    assert folder.name == result.checkpoint
    machine.close()


def test_another_process_takes_over(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    first = rig.machine()
    process = rig.begin(first)
    until(lambda: "step:2" in said(rig.there.path))
    first.sync()
    first.close()
    second = rig.machine(process)
    assert second.alive()
    assert second.find() == process
    assert (rig.job.path / "events.jsonl").read_bytes() == (rig.there.path / "events.jsonl").read_bytes()
    rig.go()
    assert rig.follow(second).state == "done"
    rig.same()
    second.close()


@pytest.mark.parametrize("sent", [False, True])
def test_a_client_that_is_killed_before_it_recorded_the_process(rig: Rig, sent: bool) -> None:
    rig.faults(pause_at="step:2")

    def client() -> None:
        machine = rig.machine()
        machine.prepare(Freight())
        machine.start(rig.spec())
        if sent:
            machine.send(rig.payload)

    in_a_child(client)
    machine = rig.machine()
    process = machine.find()
    assert process is not None
    if sent:
        until(lambda: "step:2" in said(rig.there.path))
        assert machine.alive()
        rig.go()
    result = rig.follow(machine)
    assert result.state == ("done" if sent else "needs_trace")
    machine.close()


def test_nothing_was_started(rig: Rig) -> None:
    machine = rig.machine()
    assert machine.find() is None
    machine.prepare(Freight())
    assert machine.find() is None
    assert not machine.alive()
    assert machine.retrieve("main", []) == []
    machine.release()
    machine.close()


def test_a_start_that_did_not_happen_is_not_taken_for_an_earlier_one(rig: Rig) -> None:
    machine = rig.machine()
    rig.begin(machine)
    rig.follow(machine)
    # Killed after it had written job.json here, before it reached the machine.
    machine._mirror.begin(msgspec.json.encode(rig.spec()))
    later = rig.machine()
    assert later.find() is None
    later.sync()
    assert not rig.job.exit_code.exists()
    assert not rig.job.events.exists()
    machine.close()
    later.close()


def test_a_run_is_started_again_after_its_examples_were_cut(rig: Rig) -> None:
    machine = rig.machine()
    machine.prepare(Freight())
    machine.start(rig.spec())
    assert machine._launch is not None
    machine._launch.write(b'{"trace": [100]')
    machine._launch.close()
    assert rig.follow(machine).state == "needs_trace"
    again = rig.machine()
    rig.job.clear()
    rig.begin(again)
    assert rig.follow(again).state == "done"
    rig.same()
    assert said(rig.job.path).count("steps") == 1
    machine.close()
    again.close()


def test_a_second_start_waits_for_the_first_to_give_up(rig: Rig) -> None:
    first, second = rig.machine(), rig.machine()
    first.prepare(Freight())
    second.prepare(Freight())
    first.start(rig.spec())
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            first.close()
        time.sleep(0.1)

    second._sleep = sleep
    process = second.start(rig.spec())
    second.send(rig.payload)
    assert len(waits) >= 3
    assert second.find() == process
    assert rig.follow(second).state == "done"
    second.close()


@pytest.mark.parametrize(("what", "state", "step"), [("stop", "stopped", 2), ("cancel", "cancelled", 0)])
def test_a_request_from_another_terminal(rig: Rig, what: str, state: str, step: int) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    process = rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    rig.machine(process).request(what)
    until(lambda: (rig.there.control / what).exists())
    rig.go()
    result = rig.follow(machine)
    assert (result.state, result.step) == (state, step)
    machine.close()


def test_a_cancel_outranks_a_stop_that_was_delivered(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    machine.request("stop")
    machine.request("cancel")
    until(lambda: (machine.sync(), (rig.there.control / "cancel").exists())[1])
    rig.go()
    assert rig.follow(machine).state == "cancelled"
    machine.close()


def test_kill_ends_the_whole_group(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    process = rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    assert os.getpgid(process.pid) == process.pid
    assert os.getsid(process.pid) == process.pid
    rig.machine(process).signal("KILL")

    def dead() -> bool:
        machine.sync()
        return not machine.alive()

    until(dead)
    assert not rig.job.exit_code.exists()
    assert machine.death() == "it ended without a result"
    assert "step:2" in said(rig.job.path)
    machine.close()


def test_checkpoints_are_fetched_on_the_way(rig: Rig) -> None:
    rig.faults(pause_at="step:3")
    machine = rig.machine()
    spec = rig.spec()
    train = msgspec.structs.replace(spec.train, save_every_minutes=1e-9)
    process = rig.begin(machine, train=train)
    until(lambda: "step:3" in said(rig.there.path))
    [one, two] = machine.retrieve("main", [])
    assert (one.name[:8], two.name[:8]) == ("00000001", "00000002")
    rig.go()
    assert rig.follow(machine).state == "done"
    # The first is pruned there meanwhile; what was fetched stays, and what was committed is not asked for again.
    found = rig.machine(process).retrieve("main", [one.name, two.name])
    assert [path.name[:8] for path in found] == ["00000003", "00000004"]
    for folder in (one, two, *found):
        manifest = json.loads((folder / "manifest.json").read_bytes())
        assert {p.name for p in folder.iterdir()} == {"manifest.json", *(f["path"] for f in manifest["files"])}
    machine.close()


@pytest.mark.parametrize("harm", ["content", "size", "more", "less", "manifest"])
def test_a_checkpoint_that_is_not_what_its_manifest_says_is_refused(rig: Rig, harm: str) -> None:
    machine = rig.machine()
    rig.begin(machine)
    result = rig.follow(machine)
    there = rig.there.bucket / "main/checkpoints" / str(result.checkpoint)
    file = there / "adapter_model.safetensors"
    if harm == "content":
        file.write_text("x" * file.stat().st_size)
    elif harm == "size":
        file.write_text("x")
    elif harm == "more":
        (there / "more").write_text("x")
    elif harm == "less":
        file.unlink()
    else:
        (there / "manifest.json").write_text("{")
    with pytest.raises(TransferFailed):
        machine.retrieve("main", [])
    assert list(rig.job.out.iterdir()) == []
    machine.close()


def test_links_of_a_checkpoint_are_not_followed(rig: Rig) -> None:
    machine = rig.machine()
    rig.begin(machine)
    result = rig.follow(machine)
    there = rig.there.bucket / "main/checkpoints" / str(result.checkpoint)
    (there / "adapter_model.safetensors").unlink()
    (there / "adapter_model.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(TransferFailed, match="links are not followed"):
        machine.retrieve("main", [])
    machine.close()


def test_no_row_and_no_token_stays_on_the_machine(rig: Rig) -> None:
    rig.faults(pause_at="step:2", raise_at=4, text=SENTINEL)
    machine = rig.machine()
    process = rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    secret = rig.payload.hf_token or ""

    def anywhere(word: str) -> list[Path]:
        found = [p for p in (*rig.workdir.rglob("*"), *rig.job.path.rglob("*")) if p.is_file()]
        return [p for p in found if p.name != "faults.json" and word.encode() in p.read_bytes()]

    proc = Path("/proc") / str(process.pid)
    assert secret.encode() not in (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
    assert SENTINEL.encode() not in (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
    assert not any(secret in c or SENTINEL in c for c in rig.sshd.commands())
    assert anywhere(secret) == anywhere(SENTINEL) == []
    rig.go()
    assert rig.follow(machine).state == "failed"
    assert anywhere(secret) == anywhere(SENTINEL) == []
    machine.close()


def test_a_trainer_that_does_not_start(rig: Rig) -> None:
    machine = rig.machine()
    machine.prepare(Freight())
    (rig.venv / "bin/python").rename(rig.venv / "bin/away")
    try:
        machine._python = str(rig.venv / "bin/python")
        with pytest.raises(StepctlError, match="the trainer cannot be started") as caught:
            machine.start(rig.spec())
    finally:
        (rig.venv / "bin/away").rename(rig.venv / "bin/python")
    assert caught.value.code == "no_trainer"
    machine.close()


class Late(Stream):
    """Writes once the command has ended, as over a slow line."""

    def write(self, data: bytes | memoryview) -> None:
        until(lambda: self._channel.closed)
        super().write(data)


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo no room for it >&2; exit 1", "no room for it"), ("exit 1", "the agent ended without an answer")],
)
def test_an_agent_that_dies_before_it_reads_what_to_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    machine = rig.machine()
    machine.prepare(Freight())
    (rig.there.path / "agent").write_text(script)
    monkeypatch.setattr(module, "Stream", Late)
    with pytest.raises(StepctlError, match=f"the trainer cannot be started on 127.0.0.1.*: {words}") as caught:
        machine.start(rig.spec())
    assert (caught.value.code, caught.value.safe) == ("no_trainer", "nothing was trained")
    machine.close()


def test_an_agent_that_says_something_else(rig: Rig) -> None:
    machine = rig.machine()
    machine.prepare(Freight())
    (rig.there.path / "agent").write_text("echo hello; cat > /dev/null")
    with pytest.raises(StepctlError, match="the agent says something else"):
        machine.start(rig.spec())
    machine.close()


def test_a_trainer_that_dies_before_it_takes_the_examples(rig: Rig, tmp_path: Path) -> None:
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\necho no module named torch >&2\nexit 3\n")
    dying.chmod(0o755)
    machine = rig.machine()
    machine.prepare(Freight())
    machine._python = str(dying)
    machine.start(rig.spec())
    payload = msgspec.structs.replace(rig.payload, trace=(rig.trace + b" " * 2_000_000,))
    with pytest.raises(StepctlError, match="no module named torch"):
        machine.send(payload)
    assert not machine.alive()
    machine.close()


def test_a_starter_that_dies_when_the_trainer_has_its_examples(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job goes on, and must not be called a start that failed: the rows would be trained twice."""
    machine = rig.machine()
    machine.prepare(Freight())
    process = machine.start(rig.spec())
    starter = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    shut = Stream.shut

    def dies_first(stream: Stream) -> None:
        until(lambda: "steps" in said(rig.there.path))
        os.kill(starter, signal.SIGKILL)
        shut(stream)

    monkeypatch.setattr(Stream, "shut", dies_first)
    machine.send(rig.payload)
    assert rig.follow(machine).rows_done == 8
    machine.close()


def test_a_job_is_not_removed_while_it_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    machine.release()
    assert "still runs" in rig.notices[-1]
    assert rig.there.job.exists()
    rig.go()
    assert rig.follow(machine).state == "done"
    machine.close()


def test_a_word_from_the_machine_on_why_it_ends_comes_here(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    rig.there.control.mkdir(exist_ok=True)
    rig.there.reason.write_text("deadline\n")
    (rig.there.control / "stop").touch()
    rig.go()
    assert rig.follow(machine).state == "stopped"
    assert rig.job.reason.read_text() == "deadline"
    machine.close()


def test_a_lease_is_renewed_by_each_poll_and_a_mark_names_the_job(rig: Rig, tmp_path: Path) -> None:
    rig.faults(pause_at="step:2")
    lease, mark = tmp_path / "pod/lease", tmp_path / "pod/job"
    lease.parent.mkdir()
    machine = rig.machine(lease=str(lease), mark=str(mark))
    rig.begin(machine)
    assert mark.read_text() == str(rig.there.path)
    seen = set()

    def renewed() -> bool:
        machine.sync()
        seen.add(lease.read_text())
        return len(seen) > 3

    until(renewed)
    rig.go()
    rig.follow(machine)
    machine.close()


def test_a_lease_is_renewed_while_files_go(rig: Rig, tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    model = tmp_path / "big"
    model.mkdir()
    for i in range(4):
        (model / f"w{i}").write_bytes(os.urandom(3_000_000))
    seen: list[str] = []
    now = [0.0]

    def clock() -> float:
        now[0] += 0.2  # a second and more for each block
        if lease.exists():
            seen.append(lease.read_text())
        return now[0]

    machine = rig.machine(lease=str(lease), clock=clock)
    machine.prepare(Freight(model=model, model_digest="files:big"))
    assert len(set(seen)) > 3
    assert any(isinstance(event, Transfer) for event in rig.events)
    machine.close()


def test_the_files_of_a_long_log_come_in_pieces(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    with rig.there.log.open("ab") as log:
        log.write(os.urandom(5_000_001))
    rig.go()
    rig.follow(machine)
    assert sha256_bytes(rig.job.log.read_bytes()) == sha256_bytes(rig.there.log.read_bytes())
    machine.close()


def test_two_clients_may_follow_one_job(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    first = rig.machine()
    process = rig.begin(first)
    second = rig.machine(process)
    until(lambda: (first.sync(), second.sync(), "step:2" in said(rig.job.path))[2])
    rig.go()
    until(lambda: (first.sync(), second.sync(), rig.job.exit_code.exists())[2])
    rig.same()
    assert not first.alive()
    assert not second.alive()
    first.close()
    second.close()


def test_a_folder_that_vanished_there(rig: Rig) -> None:
    (rig.workdir / "runs").mkdir(parents=True)
    machine = rig.machine(ProcessId(pid=1, started="x"))
    assert not machine.alive()
    assert machine.death().endswith(f"has nothing of run {rig.run} any more")
    machine.sync()
    assert not rig.job.exit_code.exists()
    assert machine.retrieve("main", []) == []
    machine.close()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="the other tests run without root already")
def test_a_server_without_root(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="stepctl-nobody-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Sshd(folder / "sshd", user="nobody") as sshd:
            rig = Rig(tmp_path, sshd)
            machine = rig.machine()
            rig.begin(machine)
            assert rig.there.path.stat().st_uid == sshd.uid != 0
            assert rig.follow(machine).state == "done"
            assert len(machine.retrieve("main", [])) == 1
            machine.release()
            assert not rig.there.path.exists()
            machine.close()
