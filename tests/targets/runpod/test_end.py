"""Ending pods: only what the provider confirms is gone, and the receipt says what it cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import RUN, Desk, at

from stepctl.base.errors import Exit
from stepctl.base.names import iso
from stepctl.runs.pods import PodFile
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.end import end_all, end_pod, end_unrecorded
from stepctl.targets.runpod.errors import Ambiguous, PodAlive
from stepctl.targets.runpod.keys import prepare_keys
from stepctl.targets.runpod.records import CreatePod
from stepctl.targets.runpod.wants import body_of

DELETES = r"^DELETE /v2/pods/"
LOOKS = r"^GET /v2/pods/"
LISTS = r"^GET /v2/pods$"


def test_the_receipt(desk: Desk) -> None:
    made = desk.make()
    desk.clock.sleep(3600)
    gone = end_pod(desk.api, desk.file, made, desk.pace, "client", "done")
    assert (gone.state, gone.ended_by, gone.reason) == ("gone", "client", "done")
    assert gone.ending_at
    assert timedelta(hours=1) <= at(gone.gone_at) - at(gone.created_at) < timedelta(hours=1, seconds=5)
    assert gone.spent_usd == pytest.approx(0.39, rel=0.002)
    assert desk.file.load().spent_usd == gone.spent_usd
    assert desk.sandbox.pods() == []


def test_gone_takes_three_looks_a_poll_apart_and_the_list(desk: Desk) -> None:
    made = desk.make()
    before = desk.clock.waited
    end_pod(desk.api, desk.file, made, desk.pace, "client", "done")
    calls = [call.target.replace(made.pod or "", "ID") for call in desk.sandbox.calls("pods")[1:]]
    assert calls == ["DELETE /v2/pods/ID", *["GET /v2/pods/ID"] * 3, "GET /v2/pods"]
    assert desk.clock.waited - before == 20


def test_the_end_is_recorded_before_it_is_asked_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    made = desk.make()
    seen: list[str] = []
    real = desk.api.delete
    monkeypatch.setattr(
        desk.api, "delete", lambda pod: (seen.append(PodFile(desk.file.folder).load().attempts[0].state), real(pod))[1]
    )
    end_pod(desk.api, desk.file, made, desk.pace, "client", "done")
    assert seen == ["ending"]


def test_repeating_it_does_nothing_more(desk: Desk) -> None:
    made = desk.make()
    gone = end_pod(desk.api, desk.file, made, desk.pace, "client", "done")
    calls = len(desk.sandbox.calls())
    assert end_pod(desk.api, desk.file, gone, desk.pace, "reaper", "again") == gone
    assert desk.end("again").attempts == [gone]
    assert len(desk.sandbox.calls()) == calls


def test_an_odd_404_is_no_proof(desk: Desk) -> None:
    """Two looks that do not know it, then it is there again: it is asked for anew, and the count begins anew."""
    made = desk.make()
    assert made.pod
    desk.sandbox.quirks(made.pod, undying=1, unfound=2)
    gone = end_pod(desk.api, desk.file, made, desk.pace, "client", "done")
    assert gone.state == "gone"
    assert len(desk.sandbox.calls("action$|" + DELETES)) >= 2
    assert desk.sandbox.pods() == []


def test_the_list_still_shows_it(desk: Desk) -> None:
    """404 as often as you like: while the list shows a pod it is not gone."""
    made = desk.make()
    assert made.pod
    desk.sandbox.quirks(made.pod, undying=-1, unfound=1000)
    with pytest.raises(PodAlive, match="list still shows it"):
        end_pod(desk.api, desk.file, made, desk.pace, "client", "done")


def test_it_lingers_as_terminated(desk: Desk) -> None:
    made = desk.make()
    assert made.pod
    desk.sandbox.quirks(made.pod, lingers=2, end=15)
    assert end_pod(desk.api, desk.file, made, desk.pace, "client", "done").state == "gone"


def test_terminate_where_delete_does_not_take(desk: Desk) -> None:
    made = desk.make()
    desk.sandbox.fault(Fault(DELETES, status=500, times=0))
    assert end_pod(desk.api, desk.file, made, desk.pace, "client", "done").state == "gone"
    assert desk.sandbox.pods() == []
    assert desk.sandbox.calls("POST .*/action")


def test_a_lost_answer_to_the_delete(desk: Desk) -> None:
    made = desk.make()
    desk.sandbox.fault(Fault(DELETES, drop=True, when="after", times=0))
    gone = end_pod(desk.api, desk.file, made, desk.pace, "client", "done")
    assert (gone.state, gone.ended_by) == ("gone", "client")


@pytest.mark.parametrize("status", ["EXITED", "ERROR"])
def test_stopped_pods_are_deleted_as_well(desk: Desk, status: str) -> None:
    made = desk.make()
    assert made.pod
    desk.sandbox.set_status(made.pod, status)
    desk.end()
    assert (desk.sandbox.pods(), desk.states()) == ([], ["gone"])


@pytest.mark.parametrize("who", ["provider", "pod"])
def test_a_pod_that_is_gone_already(desk: Desk, who: str) -> None:
    made = desk.make()
    assert made.pod
    desk.sandbox.end(made.pod)
    gone = end_pod(desk.api, desk.file, made, desk.pace, "client", "done", already=who)
    assert (gone.state, gone.ended_by) == ("gone", who)


def test_what_was_asked_for_before_stays_ours(desk: Desk) -> None:
    """The DELETE was sent, and the process died: the pod did not vanish, it was ended."""
    made = desk.make()
    change(desk.file, made, state="ending", ending_at=iso(desk.clock.utc()), ended_by="client", reason="done")
    desk.sandbox.end(made.pod or "")
    [gone] = desk.end("again").attempts
    assert (gone.state, gone.ended_by, gone.reason) == ("gone", "client", "done")


def test_a_pod_that_will_not_go(desk: Desk) -> None:
    made = desk.make()
    assert made.pod
    desk.sandbox.quirks(made.pod, undying=-1)
    before = desk.clock.waited
    with pytest.raises(PodAlive) as caught:
        end_pod(desk.api, desk.file, made, desk.pace, "client", "done", limit=100)
    error = caught.value
    assert (error.exit_code, error.code) == (Exit.POD_ALIVE, "pod_alive")
    assert made.pod in error.message
    assert "RUNNING" in error.message
    assert error.cost == "$0.39 per hour"
    assert error.next == f"stepctl pod rm {RUN}"
    assert error.details["pods"] == [{"pod": made.pod, "name": made.name, "usd_per_hour": 0.39}]
    assert 100 <= desk.clock.waited - before <= 120
    assert desk.states() == ["ending"]
    desk.sandbox.quirks(made.pod, undying=0)
    assert desk.end().attempts[0].reason == "done"
    assert desk.sandbox.pods() == []


def test_the_api_is_down_for_a_while(desk: Desk) -> None:
    desk.make()
    desk.sandbox.fault(Fault(".", status=503, times=12))
    assert desk.end().open == []


def test_the_api_stays_down(desk: Desk) -> None:
    made = desk.make()
    desk.sandbox.down()
    with pytest.raises(PodAlive, match="no answer"):
        desk.end()
    desk.sandbox.up()
    assert desk.states() == ["ending"]
    assert made.pod in {pod["id"] for pod in desk.sandbox.pods()}


def test_the_key_was_revoked(desk: Desk) -> None:
    desk.make()
    desk.sandbox.fault(Fault(".", status=401, times=0))
    before = desk.clock.waited
    with pytest.raises(PodAlive, match="API key"):
        desk.end()
    assert desk.clock.waited - before < 60


def test_end_all_ends_whatever_bears_the_runs_name(desk: Desk) -> None:
    """A pod that no record tells of, as after a restored backup; and none of another run, or of another program."""
    made = desk.make()
    for name, env in ((f"stepctl-{RUN}-7", RUN), ("stepctl-other-1", "other"), (f"stepctl-{RUN}-8", "other")):
        desk.api.create(_body(desk, name, env))
    desk.end()
    assert sorted(pod["name"] for pod in desk.sandbox.pods()) == [f"stepctl-{RUN}-8", "stepctl-other-1"]
    assert sorted(each.name for each in desk.attempts) == [made.name, f"stepctl-{RUN}-7"]
    assert desk.states() == ["gone", "gone"]


def _body(desk: Desk, name: str, run: str) -> CreatePod:
    return body_of(replace(desk.wants(), run=run), name, "NVIDIA L4", 0.39)


def test_end_all_tries_every_pod_before_it_gives_up(desk: Desk) -> None:
    desk.sandbox.fault(Fault("^POST /v2/pods$", pod={"twin": True}))
    made = desk.make()
    assert made.pod
    desk.sandbox.quirks(made.pod, undying=-1)
    with pytest.raises(PodAlive) as caught:
        desk.end()
    assert [pod["pod"] for pod in caught.value.details["pods"]] == [made.pod]  # type: ignore[attr-defined]
    assert [pod["id"] for pod in desk.sandbox.pods()] == [made.pod]
    assert sorted(desk.states()) == ["ending", "gone"]


def test_a_client_that_dies_before_its_look_at_the_list_leaves_that_to_the_next(desk: Desk) -> None:
    prepare_keys(desk.api, desk.file)
    desk.sandbox.fault(Fault("^POST /v2/pods$", pod={"twin": True}))
    end_pod(desk.api, desk.file, desk.make(), desk.pace, "client", "done")
    assert (desk.states(), len(desk.sandbox.pods())) == (["gone"], 1)
    desk.end()
    assert (desk.states(), desk.sandbox.pods()) == (["gone", "gone"], [])
    calls = len(desk.sandbox.calls())
    desk.end()
    assert len(desk.sandbox.calls()) == calls


def test_without_a_list_an_unresolved_create_may_be_alive(desk: Desk) -> None:
    desk.sandbox.fault(Fault("^POST /v2/pods$", drop=True, when="after"), Fault(LISTS, status=500, times=0))
    with pytest.raises(Exception, match="server failed"):
        desk.make()
    with pytest.raises(PodAlive) as caught:
        desk.end()
    assert f"stepctl-{RUN}-1" in caught.value.message
    assert caught.value.cost


def test_kept_pods_end_too(desk: Desk) -> None:
    made = desk.make()
    change(desk.file, made, state="kept", kept_until=iso(desk.clock.utc()))
    assert desk.end("its time is over").open == []
    assert desk.sandbox.pods() == []


def test_a_record_without_a_pod_asks_the_provider_nothing(desk: Desk) -> None:
    end_all(desk.api, desk.file, desk.pace, "client", "nothing happened")
    assert desk.sandbox.calls() == []


def test_a_pod_without_a_record(desk: Desk) -> None:
    pod = desk.api.create(_body(desk, "stepctl-other-1", "other"))
    end_unrecorded(desk.api, "other", pod, desk.pace)
    assert desk.sandbox.pods() == []
    pod = desk.api.create(_body(desk, "stepctl-other-2", "other"))
    desk.sandbox.quirks(pod.id, undying=-1)
    with pytest.raises(PodAlive) as caught:
        end_unrecorded(desk.api, "other", pod, desk.pace)
    assert (caught.value.next, caught.value.cost) == ("stepctl pod rm other", "$0.39 per hour")


def test_what_a_run_cost_counts_all_its_pods(desk: Desk) -> None:
    desk.sandbox.fault(Fault("^POST /v2/pods$", pod={"twin": True}))
    desk.make()
    desk.clock.sleep(1800)
    record = desk.end()
    assert record.spent_usd == pytest.approx(2 * 0.39 / 2, rel=0.05)


@pytest.mark.parametrize("wrong", [timedelta(hours=9), timedelta(hours=-9)])
def test_a_create_without_an_answer_is_judged_by_the_providers_clock(desk: Desk, wrong: timedelta) -> None:
    """The clock here is set in between: fifteen minutes are fifteen minutes."""
    desk.sandbox.fault(Fault("^POST /v2/pods$", drop=True, times=0))
    with pytest.raises(Ambiguous):
        desk.make()
    desk.pace = replace(desk.pace, utc=lambda: desk.clock.utc() + wrong)
    desk.end()
    assert set(desk.states()) == {"unresolved"}
    desk.clock.sleep(1000)
    desk.end()
    assert set(desk.states()) == {"refused"}


def test_a_pod_that_comes_after_all_is_pinned_by_its_log(desk: Desk) -> None:
    """The secret with the host key that it was to get is gone."""
    prepare_keys(desk.api, desk.file)
    assert desk.file.load().host_key is not None
    desk.sandbox.fault(Fault("^POST /v2/pods$", drop=True, times=0))
    with pytest.raises(Ambiguous):
        desk.make()
    desk.end()
    record = desk.file.load()
    assert (desk.sandbox.secrets(), record.secret_open, record.host_key) == ({}, False, None)
    assert desk.file.client_key.exists()
