"""Connections that break, freeze, and come back: no line is lost or doubled, and nobody waits for long."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time

import msgspec
import pytest
from tests.doubles.project import said, until
from tests.doubles.relay import Relay
from tests.doubles.sshd import Sshd
from tests.targets.ssh.rig import Rig

from stepctl.base.errors import StepctlError
from stepctl.jobs.directory import Payload
from stepctl.runs.process import identify
from stepctl.targets.base import Freight
from stepctl.targets.ssh import errors
from stepctl.targets.ssh.connect import Limits
from stepctl.targets.ssh.link import BACK_OFF_SEC, Link, Opened
from stepctl.targets.ssh.machine import Pace

pytestmark = pytest.mark.sshd
SHORT = Limits(connect=2.0, login=8.0, channel=8.0, answer=8.0)


class Clock:
    """Real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.more = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.more


def test_a_connection_that_breaks_mid_run_is_sought_again(rig: Rig, relay: Relay) -> None:
    rig.through(relay).faults(pause_at="step:2")
    clock = Clock()
    machine = rig.machine(clock=clock)
    rig.begin(machine)
    until(lambda: (machine.sync(), "step:2" in said(rig.job.path))[1])
    for _ in range(3):
        relay.reset()
        rig.there.log.open("ab").write(os.urandom(100_000))
        until(lambda: (machine.sync(), any("is lost" in n for n in rig.notices))[1])
        clock.more += max(BACK_OFF_SEC)
        until(lambda: (machine.sync(), rig.notices[-1].startswith("connected to"))[1])
        assert machine.alive()
        size = rig.there.log.stat().st_size
        until(lambda: (machine.sync(), rig.job.log.stat().st_size == size)[1], 10)  # noqa: B023 - called at once
        assert len(rig.notices) == 2
        rig.notices.clear()
    rig.go()
    relay.reset()
    clock.more += max(BACK_OFF_SEC)
    until(lambda: (setattr(clock, "more", clock.more + 5), machine.sync(), rig.job.exit_code.exists())[2])
    rig.same()
    assert rig.job.log.read_bytes() == rig.there.log.read_bytes()
    machine.close()


def test_one_notice_for_a_long_absence_and_longer_waits(rig: Rig, relay: Relay) -> None:
    rig.through(relay).faults(pause_at="step:2")
    clock = Clock()
    machine = rig.machine(clock=clock, limits=SHORT)
    rig.begin(machine)
    until(lambda: (machine.sync(), "step:2" in said(rig.job.path))[1])
    relay.cut()
    until(lambda: (machine.sync(), rig.notices)[1])
    for _ in range(20):
        clock.more += max(BACK_OFF_SEC)
        began = time.monotonic()
        machine.sync()
        assert time.monotonic() - began < 1.0
        assert machine.alive()
    assert len(rig.notices) == 1
    machine.request("stop")
    assert rig.job.requested() == "stop"
    assert not (rig.there.control / "stop").exists()
    relay.mend()
    clock.more += max(BACK_OFF_SEC)
    until(lambda: (machine.sync(), (rig.there.control / "stop").exists())[1])
    rig.go()
    assert rig.follow(machine).state == "stopped"
    assert len(rig.notices) == 2
    machine.close()


def test_a_frozen_connection_is_noticed_and_does_not_hold_anybody_up(rig: Rig, relay: Relay) -> None:
    """What is between acknowledges everything and passes nothing on: only a missing answer tells."""
    rig.through(relay).faults(pause_at="step:2")
    clock = Clock()
    machine = rig.machine(clock=clock)
    rig.begin(machine)
    until(lambda: (machine.sync(), "step:2" in said(rig.job.path))[1])
    relay.freeze()
    began = time.monotonic()
    for _ in range(10):
        machine.sync()
        time.sleep(0.01)
    assert time.monotonic() - began < 10 * 0.5
    assert rig.notices == []
    clock.more += Limits().answer
    machine.sync()
    assert "says nothing any more" in rig.notices[0]
    assert machine.alive()
    relay.thaw()
    relay.reset()
    clock.more += max(BACK_OFF_SEC)
    until(lambda: (machine.sync(), len(rig.notices) == 2)[1])
    rig.go()
    assert rig.follow(machine).state == "done"
    rig.same()
    machine.close()


def test_a_question_that_was_lost_with_its_connection_is_asked_again(rig: Rig, relay: Relay) -> None:
    rig.through(relay).faults(pause_at="step:2")
    clock = Clock()
    machine = rig.machine(clock=clock)
    rig.begin(machine)
    until(lambda: (machine.sync(), "step:2" in said(rig.job.path))[1])
    relay.freeze()
    until(lambda: (machine.sync(), machine._asked is not None)[1])
    opened = machine._link.opened
    assert opened is not None
    relay.thaw()
    relay.reset()
    until(lambda: not opened.connection.alive)
    with rig.there.log.open("ab") as log:
        log.write(b"more")
    machine.sync()
    clock.more += BACK_OFF_SEC[0]
    until(lambda: (machine.sync(), rig.job.log.exists())[1], 10)
    assert rig.job.log.read_bytes() == rig.there.log.read_bytes()
    assert len(rig.notices) == 2
    rig.go()
    assert rig.follow(machine).state == "done"
    machine.close()


def test_a_frozen_upload_ends(rig: Rig, relay: Relay) -> None:
    big = rig.folder / "big"
    big.mkdir()
    (big / "w").write_bytes(os.urandom(30_000_000))
    rig.through(relay)
    machine = rig.machine(limits=Limits(connect=1.0, login=1.0, channel=1.0, answer=3.0))
    machine.prepare(Freight())
    relay.freeze_after = relay.up + 5_000_000
    with pytest.raises(errors.SshError):
        machine.prepare(Freight(model=big, model_digest="files:big"))
    assert not (rig.workdir / "models/files-big").exists()
    relay.thaw()
    relay.reset()
    machine.prepare(Freight(model=big, model_digest="files:big"))
    assert (rig.workdir / "models/files-big/w").stat().st_size == 30_000_000
    assert [p.name for p in (rig.workdir / "models").iterdir() if p.name.startswith(".tmp-")] == []
    machine.close()


def test_freight_that_is_cut_goes_again(rig: Rig, relay: Relay) -> None:
    big = rig.folder / "big"
    big.mkdir()
    (big / "w").write_bytes(os.urandom(3_000_000))
    rig.through(relay)
    machine = rig.machine()
    machine.prepare(Freight())
    relay.cut_after = relay.up + 1_000_000
    machine.prepare(Freight(model=big, model_digest="files:big"))
    assert (rig.workdir / "models/files-big/w").read_bytes() == (big / "w").read_bytes()
    assert relay.cut_after is None
    machine.close()


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_examples_that_are_cut_are_needed_again(rig: Rig, relay: Relay, part: float) -> None:
    rig.through(relay)
    rig.trace += b" " * 1_000_000 + b"\n"
    machine = rig.machine()
    machine.prepare(Freight())
    machine.start(rig.spec())
    relay.cut_after = relay.up + int(part * len(rig.trace))
    machine.send(rig.payload)
    assert any("lost" in notice for notice in rig.notices)
    result = rig.follow(machine)
    assert result.state == "needs_trace"
    assert not [p for p in rig.workdir.rglob("*") if p.is_file() and b"plus" in p.read_bytes()]
    machine.close()


def test_a_checkpoint_that_is_cut_on_its_way_here_comes_again(rig: Rig, relay: Relay) -> None:
    rig.through(relay)
    machine = rig.machine()
    rig.begin(machine)
    result = rig.follow(machine)
    there = rig.there.bucket / "main/checkpoints" / str(result.checkpoint)
    data = os.urandom(20_000_000)
    manifest = msgspec.json.decode((there / "manifest.json").read_bytes())
    (there / "more.bin").write_bytes(data)
    from stepctl.base.files import sha256_bytes

    manifest["files"].append({"path": "more.bin", "size": len(data), "sha256": sha256_bytes(data)})
    (there / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    threading.Timer(0.1, relay.reset).start()
    [folder] = machine.retrieve("main", [])
    assert (folder / "more.bin").read_bytes() == data
    assert [p.name for p in rig.job.out.iterdir()] == [folder.name]
    machine.close()


def test_the_server_goes_away_and_comes_back(rig: Rig, sshd: Sshd) -> None:
    rig.faults(pause_at="step:2")
    clock = Clock()
    machine = rig.machine(clock=clock)
    rig.begin(machine)
    until(lambda: (machine.sync(), "step:2" in said(rig.job.path))[1])
    sshd.stop()
    until(lambda: (machine.sync(), rig.notices)[1])
    assert machine.alive()
    sshd.start()
    clock.more += max(BACK_OFF_SEC)
    rig.go()
    until(lambda: (setattr(clock, "more", clock.more + 5), machine.sync(), rig.job.exit_code.exists())[2])
    rig.same()
    machine.close()


def elsewhere(rig: Rig) -> bytes:
    """Let the machine be another one with the same home; the note that makes it the right one again."""
    note = rig.there.process.read_bytes()
    other = {**json.loads(note), "host": "node-a", "started": "boot-of-a:7", "view": "boot-of-a pid:[1]"}
    rig.there.process.write_text(json.dumps(other))
    return note


@pytest.mark.parametrize("hidden", ["work", "runs"])
def test_a_disk_that_is_mounted_late_after_a_restart(rig: Rig, hidden: str) -> None:
    """The job died with the machine; what it saved is fetched when the disk is there."""
    rig.faults(pause_at="step:3")
    first = rig.machine()
    train = msgspec.structs.replace(rig.spec().train, save_every_minutes=1e-9)
    process = rig.begin(first, train=train)
    until(lambda: "step:3" in said(rig.there.path))
    first.close()
    os.killpg(process.pid, signal.SIGKILL)
    until(lambda: identify(process.pid) is None)
    where, aside = rig.workdir / ("" if hidden == "work" else "runs"), rig.folder / "not-mounted"
    where.rename(aside)

    clock = Clock()
    machine = rig.machine(process, clock=clock)
    for _ in range(3):
        assert machine.alive()
        machine.sync()
        assert machine.lost
        clock.more += max(BACK_OFF_SEC)
    assert f"has no {rig.workdir}/runs now" in rig.notices[0]
    assert len(rig.notices) == 1
    with pytest.raises(errors.NoWorkdir) as caught:
        machine.retrieve("main", [])
    assert f"stepctl train attach {rig.run}" in caught.value.next
    aside.rename(where)
    until(lambda: (setattr(clock, "more", clock.more + 5), machine.sync(), not machine.alive())[2])
    assert machine.death() == "it ended without a result"
    assert [path.name[:8] for path in machine.retrieve("main", [])] == ["00000001", "00000002"]
    machine.close()


def test_a_disk_that_does_not_come_back_is_given_up(rig: Rig, relay: Relay) -> None:
    rig.through(relay).faults(pause_at="step:2")
    first = rig.machine()
    process = rig.begin(first)
    first.close()
    os.killpg(process.pid, signal.SIGKILL)
    rig.workdir.rename(rig.folder / "gone")

    clock = Clock()
    machine = rig.machine(process, clock=clock, limits=SHORT)
    assert machine.alive()
    clock.more += Pace().absent - 10
    # Another restart on the way: the time begins again.
    relay.cut()
    until(lambda: (machine.sync(), machine._link._failed == 2)[1])
    relay.mend()
    clock.more += max(BACK_OFF_SEC)
    until(lambda: (machine.sync(), machine._link._failed == 3)[1])
    assert machine.alive()
    clock.more += Pace().absent + 1
    until(lambda: (machine.sync(), not machine.alive())[1])
    assert machine.death() == f"127.0.0.1 port {relay.port} has nothing of run {rig.run} any more"
    assert machine.retrieve("main", []) == []
    machine.release()
    machine.close()


def serves(rig: Rig) -> list[str]:
    """The times that somebody attached."""
    return [c for c in rig.sshd.commands() if " serve " in c]


def test_another_machine_with_the_same_home_is_not_believed(rig: Rig) -> None:
    rig.faults(pause_at="step:2")
    machine = rig.machine()
    process = rig.begin(machine)
    until(lambda: "step:2" in said(rig.there.path))
    machine.close()
    note = elsewhere(rig)
    words = f"the job was started on node-a, and this is {os.uname().nodename}"
    later = rig.machine(process)
    assert later.alive()
    for act in (later.sync, lambda: later.retrieve("main", []), lambda: later.prepare(Freight())):
        with pytest.raises(errors.BadSetup, match=words) as caught:
            act()
        assert caught.value.code == "ssh_other_host"
    later.release()
    assert words in rig.notices[-1]
    assert rig.there.job.exists()
    rig.there.process.write_bytes(note)
    rig.go()
    last = rig.machine(process)
    assert rig.follow(last).state == "done"
    last.close()


def test_a_connection_that_comes_back_to_another_machine_is_sought_again(rig: Rig, relay: Relay) -> None:
    rig.through(relay).faults(pause_at="step:2")
    clock = Clock()
    machine = rig.machine(clock=clock)
    rig.begin(machine)
    until(lambda: (machine.sync(), "step:2" in said(rig.job.path))[1])
    note = elsewhere(rig)
    relay.reset()
    for _ in range(2):
        tries = len(serves(rig))
        until(lambda: (setattr(clock, "more", clock.more + 5), machine.sync(), len(serves(rig)) > tries)[2])  # noqa: B023
        assert machine.alive()
    until(lambda: (machine.sync(), len(rig.notices) == 2)[1])
    assert "the job was started on node-a" in rig.notices[1]
    rig.there.process.write_bytes(note)
    clock.more += max(BACK_OFF_SEC)
    until(lambda: (machine.sync(), not machine.lost)[1])
    rig.go()
    assert rig.follow(machine).state == "done"
    rig.same()
    machine.close()


def test_an_attached_client_that_reaches_nobody_goes_on_trying(rig: Rig, relay: Relay) -> None:
    machine = rig.machine()
    process = rig.begin(machine)
    machine.close()
    rig.through(relay)
    relay.cut()
    later = rig.machine(process, limits=SHORT)
    assert later.alive()
    assert len(rig.notices) == 1
    with pytest.raises(errors.SshError):
        rig.machine(process, limits=SHORT).retrieve("main", [])
    rig.machine(process, limits=SHORT).release()
    assert rig.there.path.exists()
    relay.mend()
    assert rig.follow(later).state == "done"
    later.close()


def test_a_client_that_falls_silent_does_not_keep_the_trainer_waiting(
    rig: Rig, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine froze: no end of the stream comes, ever."""
    from stepctl.jobs import remote
    from stepctl.targets.ssh import machine as module

    def brief(**kw: object) -> remote.Launch:
        return remote.Launch(**{**kw, "idle_sec": 0.5})  # type: ignore[arg-type]

    monkeypatch.setattr(module, "Launch", brief)
    rig.through(relay)
    machine = rig.machine(limits=SHORT, pace=Pace(poll=0.02, look=0.05, launch=3.0))
    machine.prepare(Freight())
    machine.start(rig.spec())
    relay.freeze()
    machine.send(Payload(trace=(rig.trace,)))
    until(lambda: rig.there.exit_code.exists())
    assert b"needs_trace" in rig.there.result.read_bytes()
    relay.thaw()
    machine.close()


# --- the waits, without a machine -------------------------------------------------------------------------------------


class Nobody:
    """A connection as far as a link looks."""

    alive, where = True, "there"

    def close(self) -> None:
        self.alive = False


def test_the_waits_grow_to_a_minute() -> None:
    now, tried, notices = [0.0], [], []

    def refuse() -> Opened:
        tried.append(now[0])
        raise errors.refused("there")

    link = Link(refuse, lambda: now[0], notices.append)
    for second in range(300):
        now[0] = float(second)
        assert link.soon(5) is None
    assert [b - a for a, b in itertools.pairwise(tried)][:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(notices) == 1


def test_what_a_person_must_mend_is_said_at_once_but_not_after_a_connection() -> None:
    notices: list[str] = []
    error: list[StepctlError] = [errors.unknown_host_key("there", "key", "scan", "file")]

    def open() -> Opened:
        if error:
            raise error[0]
        return Opened(Nobody(), None)  # type: ignore[arg-type]

    now = [0.0]
    link = Link(open, lambda: now[0], notices.append)
    with pytest.raises(errors.UnknownHostKey):
        link.soon(5)
    with pytest.raises(errors.UnknownHostKey):
        link.now()
    held = error.pop()
    now[0] = 100.0
    opened = link.soon(5)
    assert opened is not None
    opened.connection.close()
    error.append(held)
    assert link.soon(5) is None
    now[0] += 100.0
    assert link.soon(5) is None
    error.clear()
    now[0] += 100.0
    assert link.soon(5) is not None
    assert notices[0].startswith("the connection to there is lost")
    assert "the host key of there is not known" in notices[1]
    assert notices[2] == "connected to there again"
    assert len(notices) == 3


def test_a_connection_that_nobody_waits_for_any_more_is_closed() -> None:
    gate, made = threading.Event(), []

    def slow() -> Opened:
        gate.wait(5)
        made.append(Nobody())
        return Opened(made[-1], None)  # type: ignore[arg-type]

    link = Link(slow, time.monotonic, lambda _: None)
    assert link.soon(0) is None
    link.close()
    gate.set()
    until(lambda: made and not made[0].alive)
