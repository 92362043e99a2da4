"""``stepctl pod`` asks the account that rented, and goes on past what it cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.doubles.runpod import Fault, Sandbox
from tests.targets.runpod.acting import RUN, Clock, Desk

from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.base.names import iso
from stepctl.calls import pods, removing
from stepctl.calls.account import account
from stepctl.calls.world import World
from stepctl.cli.main import run as run_command
from stepctl.config.load import load_settings
from stepctl.runs.pods import PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import BadKey, PodAlive
from stepctl.targets.runpod.keys import client_key

LIST = r"^GET /v2/pods(\?|$)"


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
        yield sandbox


@pytest.fixture
def desk(running: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    running.reset()
    monkeypatch.setenv("RUNPOD_API_KEY", running.key)
    desk = Desk(running, Clock(running.advance), tmp_path / "elsewhere")
    yield desk
    desk.close()
    running.check()


@pytest.fixture
def world(desk: Desk, tmp_path: Path) -> World:
    """A project with two targets that rent, of which ``cloud`` is the emulated provider's."""
    (tmp_path / "stepctl.toml").write_text(
        f'target = "other"\n[targets.other]\nkind = "runpod"\nmax_hours = 1\napi_url = "http://127.0.0.1:9/v2"\n'
        f'[targets.cloud]\nkind = "runpod"\nmax_hours = 1\npoll_seconds = 10\napi_url = "{desk.sandbox.url}"\n'
    )
    return World(load_settings({}, {}, tmp_path), now=desk.clock.now, wait=desk.clock.sleep)


def run_with_pod(world: World, desk: Desk, run: str = RUN, target: str = "cloud") -> PodFile:
    """A run of the project, and the desk at it."""
    options = {"kind": "runpod", "api_url": desk.sandbox.url, "max_hours": 1.0, "poll_seconds": 10.0}
    record = RunRecord(
        run=run,
        created_at="",
        updated_at="",
        state="running",
        method="sft",
        model="m",
        bucket="b",
        lineage="main",
        target=target,
        target_options=options,
        key=None,
        trace=TraceRecord(paths=(), sha256="", rows_total=0),
        eval=None,
        parent="",
        from_step=0,
        steps_planned=1,
        new_root=True,
        client=ProcessId(pid=1, started=""),
    )
    world.store.create(record)
    desk.file = PodFile(world.store.folder(run))
    desk.file.save(PodRecord(run=run, target=target, account=desk.api.account))
    desk.make(run=run)
    return desk.file


def test_a_run_is_asked_about_where_it_was_rented(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0]
    for word in (RUN, RUN[:10], pod.pod, pod.name):
        with account(world, None, word) as asked:
            assert (asked.name, asked.api.url) == ("cloud", desk.sandbox.url)
    with account(world, "other", RUN) as asked:
        assert asked.name == "other"
    with account(world, None, "nothing") as asked:
        assert asked.name == "other"
    with pytest.raises(UsageError), account(world, "local", RUN):
        pass
    with account(world, None, RUN) as asked:
        assert [each["pod"] for each in removing.remove(world, asked, RUN)["ended"]] == [pod.pod]


@pytest.mark.parametrize("state", ["done", "running"])
def test_a_kept_pod_takes_the_keys_of_a_run_that_has_ended_along(world: World, desk: Desk, state: str) -> None:
    """A run that goes on may still make another pod with them."""
    run_with_pod(world, desk)
    client_key(desk.file)
    world.store.update(RUN, lambda record: setattr(record, "state", state))
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(desk.clock.utc()))
    with account(world, "cloud") as asked:
        removing.remove(world, asked, str(desk.attempts[0].pod))
    assert desk.states() == ["gone"]
    assert desk.file.client_key.exists() == (state == "running")


def test_kept_pods_of_other_accounts_stay(world: World, desk: Desk) -> None:
    run_with_pod(world, desk, target="theirs")
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(desk.clock.utc()))
    desk.file.update(lambda record: setattr(record, "account", "0123456789abcdef"))
    desk.sandbox.end(desk.attempts[0].pod or "")
    with account(world, "cloud") as asked:
        pods.look(world, asked)
        assert desk.states() == ["kept"]
        desk.file.update(lambda record: setattr(record, "account", None))
        pods.look(world, asked)
        assert desk.states() == ["kept"]
        desk.file.update(lambda record: setattr(record, "account", asked.api.account))
        pods.look(world, asked)
    assert desk.states() == ["gone"]


def test_a_kept_pod_that_one_list_does_not_show_stays(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(desk.clock.utc()))
    desk.sandbox.quirks(desk.attempts[0].pod, unlisted=1)
    with account(world, "cloud") as asked:
        pods.look(world, asked)
    assert desk.states() == ["kept"]
    assert len(desk.sandbox.pods()) == 1


def test_a_create_that_is_under_way_may_still_become_a_pod(world: World, desk: Desk) -> None:
    """It is no receipt, and the keys stay; once it is known that nothing came of it, they go."""
    run_with_pod(world, desk)
    late = msgspec.structs.replace(desk.attempts[0], name=f"stepctl-{RUN}-9", pod=None, state="intended")
    desk.file.update(lambda record: record.attempts.append(late))
    desk.file.client_key.write_text("key")
    with account(world, None, RUN) as asked:
        with pytest.raises(PodAlive, match=f"{RUN}-9") as caught:
            removing.remove(world, asked, RUN)
        assert caught.value.exit_code == Exit.POD_ALIVE
        assert (desk.states(), desk.file.client_key.exists()) == (["gone", "unresolved"], True)
        desk.clock.sleep(1000)
        removing.remove(world, asked, RUN)
    assert (desk.states(), desk.file.client_key.exists()) == (["gone", "refused"], False)


def test_reap_goes_on_past_what_it_cannot_write(world: World, desk: Desk) -> None:
    runs = [RUN, "20261130T051502917-2f9c0a", "20261130T061502917-3f9c0a"]
    files = [run_with_pod(world, desk, run) for run in runs]
    (files[0].folder / ".pod").unlink()
    (files[0].folder / ".pod").mkdir()
    desk.clock.sleep(7200 + 300)
    with account(world, "cloud") as asked, pytest.raises(OSError, match="directory"):
        pods.reap(world, asked, dry_run=False)
    assert desk.sandbox.pods() == []
    assert [file.load().attempts[0].state for file in files] == ["made", "gone", "gone"]


def test_reap_tells_of_a_pod_that_may_be_alive_first(world: World, desk: Desk) -> None:
    runs = [RUN, "20261130T051502917-2f9c0a"]
    files = [run_with_pod(world, desk, run) for run in runs]
    (files[0].folder / ".pod").unlink()
    (files[0].folder / ".pod").mkdir()
    desk.sandbox.quirks(files[1].load().attempts[0].pod, undying=-1)
    desk.clock.sleep(7200 + 300)
    with account(world, "cloud") as asked, pytest.raises(PodAlive):
        pods.reap(world, asked, dry_run=False)


@pytest.mark.parametrize("word", ["run", "pod"])
def test_a_pod_is_deleted_although_the_list_cannot_be_had(world: World, desk: Desk, word: str) -> None:
    """Its id is in the record; only the confirmation waits for the list."""
    run_with_pod(world, desk)
    pod = str(desk.attempts[0].pod)
    named = RUN if word == "run" else pod
    desk.sandbox.fault(Fault(LIST, status=403, times=0))
    with pytest.raises(PodAlive, match=f"{pod} may still be alive.*cannot list the pods") as caught:
        removing.rm(world, None, named)
    assert (caught.value.exit_code, caught.value.next) == (Exit.POD_ALIVE, f"stepctl pod rm {RUN}")
    assert (desk.sandbox.pods(), desk.states()) == ([], ["ending"])
    desk.sandbox.clear()
    assert [each["pod"] for each in removing.rm(world, None, RUN)["ended"]] == [pod]


def test_a_list_that_fails_once_keeps_nothing_from_its_receipt(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    desk.sandbox.fault(Fault(LIST, status=403))
    assert [each["state"] for each in removing.rm(world, None, RUN)["ended"]] == ["gone"]


def test_without_a_list_one_pod_is_ended_alone(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    first = desk.attempts[0]
    other = msgspec.structs.replace(first, name=f"stepctl-{RUN}-9", pod="another")
    desk.file.update(lambda record: record.attempts.append(other))
    desk.sandbox.fault(Fault(LIST, status=403))
    assert [each["pod"] for each in removing.rm(world, None, str(first.pod))["ended"]] == [first.pod]
    assert desk.states() == ["gone", "made"]


def test_a_list_that_fails_is_the_error_where_nothing_is_open(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    pod = str(desk.attempts[0].pod)
    removing.rm(world, None, RUN)
    desk.sandbox.fault(Fault(LIST, status=403, times=0))
    for target, word in ((None, RUN), (None, pod), ("cloud", "nothing")):
        with pytest.raises(BadKey, match="cannot list the pods"):
            removing.rm(world, target, word)


def test_a_missing_key_tells_of_the_pod(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0]
    key = desk.sandbox.key
    monkeypatch.delenv("RUNPOD_API_KEY")
    for word in (RUN, str(pod.pod)):
        with pytest.raises(PodAlive, match=f"{pod.pod} may still be alive.*no Runpod API key") as caught:
            removing.rm(world, None, word)
        assert caught.value.cost == f"${pod.price:.2f} per hour"
        assert "export RUNPOD_API_KEY=" in caught.value.next
        assert caught.value.next.endswith(f"; then: stepctl pod rm {word}")
    monkeypatch.setenv("RUNPOD_API_KEY", key)
    removing.rm(world, None, RUN)
    monkeypatch.delenv("RUNPOD_API_KEY")
    with pytest.raises(UsageError, match="no Runpod API key"):
        removing.rm(world, None, RUN)


def test_the_command_exits_with_8_and_the_pod(
    world: World, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNPOD_API_KEY")
    assert run_command(["pod", "rm", RUN]) == Exit.POD_ALIVE
    said = capsys.readouterr().err
    assert f"error: pod {pod.pod} may still be alive" in said
    assert f"still costs: ${pod.price:.2f} per hour" in said
    assert f"then: stepctl pod rm {RUN}\n" in said


def _interrupt(_: float) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_tells_of_the_pod(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    pod = desk.attempts[0].pod
    for word in (RUN, str(pod)):
        with pytest.raises(PodAlive, match=f"{pod} may still be alive.*interrupted") as caught:
            removing.rm(replace(world, wait=_interrupt), None, word)
        assert (caught.value.exit_code, caught.value.next) == (Exit.POD_ALIVE, f"stepctl pod rm {word}")
    removing.rm(world, None, RUN)
    assert desk.states() == ["gone"]


def test_a_create_without_an_answer_is_no_unknown_name(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    late = msgspec.structs.replace(desk.attempts[0], name=f"stepctl-{RUN}-9", pod=None, state="unresolved")
    desk.file.update(lambda record: record.attempts.append(late))
    with pytest.raises(PodAlive, match=r"its create had no answer.*no list shows it yet"):
        removing.rm(world, None, late.name)
    assert desk.states() == ["made", "unresolved"]


def test_an_interrupt_tells_of_a_stray(world: World, desk: Desk) -> None:
    pod = desk.make().pod
    with pytest.raises(PodAlive, match=f"{pod} may still be alive.*interrupted") as caught:
        removing.rm(replace(world, wait=_interrupt), "cloud", str(pod))
    assert caught.value.next == f"stepctl pod rm {pod}"


def test_an_interrupt_with_nothing_open_is_one(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_pod(world, desk)
    removing.rm(world, None, RUN)
    monkeypatch.setattr(removing, "sweep", lambda *_, **__: _interrupt(0))
    with pytest.raises(KeyboardInterrupt):
        removing.rm(world, None, RUN)


def test_a_bug_tells_of_the_pod(world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_with_pod(world, desk)

    def broken(*_: object, **__: object) -> None:
        raise ValueError("words")

    monkeypatch.setattr(removing, "sweep", broken)
    with pytest.raises(PodAlive, match=f"{desk.attempts[0].pod} may still be alive.*bug in stepctl: Val") as caught:
        removing.rm(world, None, RUN)
    assert caught.value.code == "bug"
    assert "words" not in caught.value.message


def test_a_record_that_cannot_be_read_keeps_no_pod_alive(world: World, desk: Desk) -> None:
    file = run_with_pod(world, desk)
    pod = desk.attempts[0].pod
    file.path.write_text("{")
    with pytest.raises(StepctlError, match=r"pod\.json cannot be read") as caught:
        removing.rm(world, None, RUN)
    assert (caught.value.exit_code, caught.value.safe) == (Exit.POD_ALIVE, f"gone: pod {pod}")
    assert desk.sandbox.pods() == []


def test_a_pod_whose_record_cannot_be_read_is_ended_by_its_id(world: World, desk: Desk) -> None:
    file = run_with_pod(world, desk)
    pod = str(desk.attempts[0].pod)
    file.path.write_text("{")
    assert [each["pod"] for each in removing.rm(world, "cloud", pod)["ended"]] == [pod]
    assert desk.sandbox.pods() == []


def test_an_interrupted_reap_tells_of_what_is_left(world: World, desk: Desk) -> None:
    files = [run_with_pod(world, desk, run) for run in (RUN, "20261130T051502917-2f9c0a")]
    desk.clock.sleep(7200 + 300)
    with account(replace(world, wait=_interrupt), "cloud") as asked, pytest.raises(PodAlive) as caught:
        pods.reap(world, asked, dry_run=False)
    assert all(str(file.load().attempts[0].pod) in caught.value.message for file in files)
    assert caught.value.next == "stepctl pod reap"
