"""``stepctl pod`` asks the account that rented, and goes on past what it cannot write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.doubles.runpod import Sandbox
from tests.targets.runpod.acting import RUN, Clock, Desk

from stepctl.base.errors import Exit, UsageError
from stepctl.base.names import iso
from stepctl.calls import pods
from stepctl.calls.world import World
from stepctl.config.load import load_settings
from stepctl.runs.pods import PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord, TraceRecord
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import PodAlive
from stepctl.targets.runpod.keys import client_key


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
        with pods.account(world, None, word) as account:
            assert (account.name, account.api.url) == ("cloud", desk.sandbox.url)
    with pods.account(world, "other", RUN) as account:
        assert account.name == "other"
    with pods.account(world, None, "nothing") as account:
        assert account.name == "other"
    with pytest.raises(UsageError), pods.account(world, "local", RUN):
        pass
    with pods.account(world, None, RUN) as account:
        assert [each["pod"] for each in pods.remove(world, account, RUN)["ended"]] == [pod.pod]


@pytest.mark.parametrize("state", ["done", "running"])
def test_a_kept_pod_takes_the_keys_of_a_run_that_has_ended_along(world: World, desk: Desk, state: str) -> None:
    """A run that goes on may still make another pod with them."""
    run_with_pod(world, desk)
    client_key(desk.file)
    world.store.update(RUN, lambda record: setattr(record, "state", state))
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(desk.clock.utc()))
    with pods.account(world, "cloud") as account:
        pods.remove(world, account, str(desk.attempts[0].pod))
    assert desk.states() == ["gone"]
    assert desk.file.client_key.exists() == (state == "running")


def test_kept_pods_of_other_accounts_stay(world: World, desk: Desk) -> None:
    run_with_pod(world, desk, target="theirs")
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(desk.clock.utc()))
    desk.file.update(lambda record: setattr(record, "account", "0123456789abcdef"))
    desk.sandbox.end(desk.attempts[0].pod or "")
    with pods.account(world, "cloud") as account:
        pods.look(world, account)
        assert desk.states() == ["kept"]
        desk.file.update(lambda record: setattr(record, "account", None))
        pods.look(world, account)
        assert desk.states() == ["kept"]
        desk.file.update(lambda record: setattr(record, "account", account.api.account))
        pods.look(world, account)
    assert desk.states() == ["gone"]


def test_a_kept_pod_that_one_list_does_not_show_stays(world: World, desk: Desk) -> None:
    run_with_pod(world, desk)
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(desk.clock.utc()))
    desk.sandbox.quirks(desk.attempts[0].pod, unlisted=1)
    with pods.account(world, "cloud") as account:
        pods.look(world, account)
    assert desk.states() == ["kept"]
    assert len(desk.sandbox.pods()) == 1


def test_a_create_that_is_under_way_may_still_become_a_pod(world: World, desk: Desk) -> None:
    """It is no receipt, and the keys stay; once it is known that nothing came of it, they go."""
    run_with_pod(world, desk)
    late = msgspec.structs.replace(desk.attempts[0], name=f"stepctl-{RUN}-9", pod=None, state="intended")
    desk.file.update(lambda record: record.attempts.append(late))
    desk.file.client_key.write_text("key")
    with pods.account(world, None, RUN) as account:
        with pytest.raises(PodAlive, match=f"{RUN}-9") as caught:
            pods.remove(world, account, RUN)
        assert caught.value.exit_code == Exit.POD_ALIVE
        assert (desk.states(), desk.file.client_key.exists()) == (["gone", "unresolved"], True)
        desk.clock.sleep(1000)
        pods.remove(world, account, RUN)
    assert (desk.states(), desk.file.client_key.exists()) == (["gone", "refused"], False)


def test_reap_goes_on_past_what_it_cannot_write(world: World, desk: Desk) -> None:
    runs = [RUN, "20261130T051502917-2f9c0a", "20261130T061502917-3f9c0a"]
    files = [run_with_pod(world, desk, run) for run in runs]
    (files[0].folder / ".pod").unlink()
    (files[0].folder / ".pod").mkdir()
    desk.clock.sleep(7200 + 300)
    with pods.account(world, "cloud") as account, pytest.raises(OSError, match="directory"):
        pods.reap(world, account, dry_run=False)
    assert desk.sandbox.pods() == []
    assert [file.load().attempts[0].state for file in files] == ["made", "gone", "gone"]


def test_reap_tells_of_a_pod_that_may_be_alive_first(world: World, desk: Desk) -> None:
    runs = [RUN, "20261130T051502917-2f9c0a"]
    files = [run_with_pod(world, desk, run) for run in runs]
    (files[0].folder / ".pod").unlink()
    (files[0].folder / ".pod").mkdir()
    desk.sandbox.quirks(files[1].load().attempts[0].pod, undying=-1)
    desk.clock.sleep(7200 + 300)
    with pods.account(world, "cloud") as account, pytest.raises(PodAlive):
        pods.reap(world, account, dry_run=False)
