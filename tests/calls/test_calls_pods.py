"""``stepctl pod`` asks the account that rented, and goes on past what it cannot write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from tests.calls.renting import interrupt, run_with_pod
from tests.targets.runpod.acting import RUN, Desk

from stepctl.base.errors import Exit, UsageError
from stepctl.base.names import iso, utc_now
from stepctl.calls import pods, removing
from stepctl.calls.account import account
from stepctl.calls.attach import attach
from stepctl.calls.away import with_pods
from stepctl.calls.leftovers import end_left
from stepctl.calls.reporting import report_of
from stepctl.calls.world import World
from stepctl.runs.record import RunRecord
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import PodAlive
from stepctl.targets.runpod.keys import client_key


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


def test_an_interrupted_reap_tells_of_what_is_left(world: World, desk: Desk) -> None:
    files = [run_with_pod(world, desk, run) for run in (RUN, "20261130T051502917-2f9c0a")]
    desk.clock.sleep(7200 + 300)
    with account(replace(world, wait=interrupt), "cloud") as asked, pytest.raises(PodAlive) as caught:
        pods.reap(world, asked, dry_run=False)
    assert all(str(file.load().attempts[0].pod) in caught.value.message for file in files)
    assert caught.value.next == "stepctl pod reap"


def _kept(world: World, desk: Desk, seconds: float) -> None:
    """An ended run whose pod is kept for so long from now, with its key."""
    run_with_pod(world, desk)
    client_key(desk.file)
    change(desk.file, desk.attempts[0], state="kept", kept_until=iso(utc_now() + timedelta(seconds=seconds)))

    def end(record: RunRecord) -> None:
        record.state = "done"
        report = with_pods(report_of(record), world.store, RUN)
        report.state = "done"
        record.report = msgspec.to_builtins(report)

    world.store.update(RUN, end)


def _reap(world: World, **options: bool) -> None:
    with account(world, "cloud") as asked:
        pods.reap(world, asked, **{"dry_run": False, **options})


CLOSERS = [_reap, end_left, lambda world: attach(world, RUN)]


@pytest.mark.parametrize("close", CLOSERS, ids=["reap", "train", "attach"])
def test_a_kept_pod_that_nobody_took_gets_its_receipt(
    world: World, desk: Desk, close: Callable[[World], object]
) -> None:
    _kept(world, desk, -60)
    desk.sandbox.end(desk.attempts[0].pod or "")
    close(world)
    assert (desk.states(), desk.file.client_key.exists()) == (["gone"], False)
    assert (desk.attempts[0].ended_by, desk.attempts[0].reason) == ("pod", "nobody took it in its time")
    report = world.store.load(RUN).report or {}
    assert [each["state"] for each in report["pods"]] == ["gone"]
    assert report["exit_code"] == 0


@pytest.mark.parametrize("close", CLOSERS, ids=["reap", "train", "attach"])
def test_a_kept_pod_that_lives_stays(world: World, desk: Desk, close: Callable[[World], object]) -> None:
    """Past its time as well: it ends itself, and ``pod reap`` ends it past its deadline."""
    _kept(world, desk, -60)
    close(world)
    assert (desk.states(), desk.file.client_key.exists(), len(desk.sandbox.pods())) == (["kept"], True, 1)


def test_reap_that_only_looks_changes_no_record(world: World, desk: Desk) -> None:
    _kept(world, desk, -60)
    desk.sandbox.end(desk.attempts[0].pod or "")
    _reap(world, dry_run=True)
    assert desk.states() == ["kept"]


def test_a_kept_pod_within_its_time_is_not_asked_for(world: World, desk: Desk) -> None:
    _kept(world, desk, 3600)
    asked = len(desk.sandbox.calls())
    end_left(world)
    attach(world, RUN)
    assert (desk.states(), len(desk.sandbox.calls())) == (["kept"], asked)


def test_a_kept_pod_that_cannot_be_asked_for_is_passed_over(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kept(world, desk, -60)
    desk.sandbox.end(desk.attempts[0].pod or "")
    monkeypatch.delenv("RUNPOD_API_KEY")
    end_left(world)
    assert attach(world, RUN).state == "done"
    assert desk.states() == ["kept"]
