"""Getting a pod: intents first, ambiguous creates resolved by name, prices checked, nothing doubled, nothing left."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.doubles.runpod import Fault, no_stock
from tests.targets.runpod.acting import A40, A5000, L4, RTX3090, RUN, Desk, at

from stepctl.base.errors import Exit, UsageError
from stepctl.runs.pods import PodFile
from stepctl.targets.base import GivenUp
from stepctl.targets.runpod import create
from stepctl.targets.runpod.attempts import ABSENT_AFTER
from stepctl.targets.runpod.errors import (
    Ambiguous,
    BadKey,
    Blocked,
    NoBalance,
    NoCapacity,
    PriceAbove,
    Rejected,
    RunpodError,
    Unreachable,
)
from stepctl.targets.runpod.records import CreatePod, Pod

CREATES = r"^POST /v2/pods$"


def test_a_pod_is_made_and_recorded(desk: Desk) -> None:
    attempt = desk.make(gpu_count=2, max_cost_usd=0.39, min_cuda_version="12.8", env={"PUBLIC_KEY": "k"}, args="a")
    assert (attempt.state, attempt.gpu_type, attempt.gpu_count, attempt.cloud) == ("made", L4, 2, "SECURE")
    assert attempt.name == f"stepctl-{RUN}-1"
    assert attempt.price == attempt.listed_price == 0.78
    assert attempt.data_center == "EU-RO-1"
    assert at(attempt.deadline_at) - at(attempt.created_at) == timedelta(minutes=30)
    [pod] = desk.sandbox.pods()
    assert (pod["id"], pod["name"]) == (attempt.pod, attempt.name)
    limits = {"STEPCTL_MAX_SECONDS": "1800", "STEPCTL_MAX_REASON": "cost", "STEPCTL_SAVE_AHEAD": "180"}
    assert pod["env"] == {"PUBLIC_KEY": "k", "STEPCTL_RUN": RUN, **limits}
    body = desk.sandbox.calls(CREATES)[0].body
    assert body is not None
    assert body["gpu"] == {"id": L4, "count": 2, "minCudaVersion": "12.8"}
    assert (body["disk"], body["ports"], body["args"]) == (50, ["22/tcp"], "a")
    assert "startSsh" not in body
    assert desk.attempts == [attempt]


def test_a_volume_and_data_centers_are_asked_for(desk: Desk) -> None:
    attempt = desk.make(network_volume_id="sandboxvol1", data_center_ids=("EU-SE-1", "EU-RO-1"), cloud="SECURE")
    [pod] = desk.sandbox.pods()
    assert pod["mounts"] == {"network": [{"volumeId": "sandboxvol1", "path": "/workspace"}]}
    assert attempt.data_center == "EU-RO-1"


def test_the_intent_is_written_before_the_create(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []
    real = desk.api.create

    def watched(body: object) -> object:
        attempt = PodFile(desk.file.folder).load().attempts[-1]
        seen.append((attempt.state, attempt.gpu_type))
        assert desk.posts() == 0
        return real(body)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.api, "create", watched)
    desk.make()
    assert seen == [("intended", L4)]


def test_called_again_it_finds_its_pod(desk: Desk) -> None:
    first = desk.make()
    assert desk.make() == first
    assert desk.posts() == 1


@pytest.mark.parametrize("status", ["EXITED", "ERROR"])
def test_a_pod_that_stopped_is_deleted_and_another_made(desk: Desk, status: str) -> None:
    first = desk.make()
    assert first.pod
    desk.sandbox.set_status(first.pod, status)
    second = desk.make()
    assert second.pod != first.pod
    assert [pod["id"] for pod in desk.sandbox.pods()] == [second.pod]
    assert desk.states() == ["gone", "made"]


def test_a_pod_that_vanished_is_confirmed_gone_and_another_made(desk: Desk) -> None:
    first = desk.make()
    assert first.pod
    desk.sandbox.end(first.pod)
    second = desk.make()
    gone = desk.attempts[0]
    assert (gone.state, gone.ended_by, gone.pod) == ("gone", "provider", first.pod)
    assert second.name == f"stepctl-{RUN}-2"


def test_a_pod_that_no_key_opens_any_more_is_ended(desk: Desk) -> None:
    first = desk.make()
    second = create.make_pod(desk.api, desk.file, desk.wants(), desk.pace, desk.tell, adopt=False)
    assert [pod["id"] for pod in desk.sandbox.pods()] == [second.pod] != [first.pod]
    assert desk.states() == ["gone", "made"]


def test_one_odd_404_gives_up_no_living_pod(desk: Desk) -> None:
    first = desk.make()
    assert first.pod
    desk.sandbox.quirks(first.pod, unfound=2)
    assert desk.make().pod == first.pod
    assert desk.created() == 1


def test_the_answer_is_lost_and_the_pod_is_there(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, when="after", drop=True))
    attempt = desk.make()
    assert (desk.posts(), attempt.state, attempt.pod) == (1, "made", desk.sandbox.pods()[0]["id"])


@pytest.mark.parametrize(
    "fault",
    [
        Fault(CREATES, when="after", status=500, pod={"unlisted": 2}),
        Fault(CREATES, when="after", status=502, text="<html>bad gateway</html>", pod={"unlisted": 1}),
        Fault(CREATES, when="after", status=524, text="", pod={"unlisted": 3}),
        Fault(CREATES, when="after", drop=True, pod={"unlisted": 2}),
        Fault(CREATES, when="after", status=201, text="<html>", pod={"unlisted": 1}),
        Fault(CREATES, when="after", status=500, detail="create pod: no longer any instances available"),
    ],
)
def test_an_ambiguous_create_is_adopted_and_never_repeated(desk: Desk, fault: Fault) -> None:
    desk.sandbox.fault(fault)
    attempt = desk.make()
    assert (desk.posts(), desk.created(), attempt.state) == (1, 1, "made")
    assert attempt.price == 0.39
    desk.end()
    assert (desk.sandbox.pods(), desk.states()) == ([], ["gone"])


def test_an_absent_pod_is_waited_for_before_one_more_create(desk: Desk) -> None:
    """It comes 60 s later: it is entered under its own attempt, and ended."""
    desk.sandbox.fault(Fault(CREATES, when="after", drop=True, pod={"unlisted": 6}))
    second = desk.make()
    assert (desk.posts(), second.state, second.name[-2:]) == (2, "made", "-2")
    lists = [call for call in desk.sandbox.calls(r"GET /v2/pods$") if call.n < desk.sandbox.calls(CREATES)[1].n]
    assert len(lists) >= 4
    assert desk.clock.waited >= 30
    assert desk.states() == ["unresolved", "made"]
    desk.clock.sleep(60)
    for _ in range(3):
        desk.api.pods()
    desk.end()
    assert (desk.sandbox.pods(), desk.states()) == ([], ["gone", "gone"])


def test_a_create_that_never_was_stays_open_until_that_is_certain(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, drop=True))
    desk.make()
    record = desk.end()
    assert [each.state for each in record.attempts] == ["unresolved", "gone"]
    assert [each.name for each in record.open] == [f"stepctl-{RUN}-1"]
    desk.clock.sleep(ABSENT_AFTER.total_seconds())
    record = desk.end()
    assert ([each.state for each in record.attempts], record.open) == (["refused", "gone"], [])
    assert record.attempts[0].spent_usd == 0


def test_two_creates_without_an_answer_end_the_search(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, drop=True, times=0))
    with pytest.raises(Ambiguous) as caught:
        desk.make(gpu_types=(L4, A5000))
    assert (desk.posts(), desk.states()) == (2, ["unresolved", "unresolved"])
    assert caught.value.exit_code == Exit.FAILED
    assert "may" in caught.value.message or "not known" in caught.value.message
    assert caught.value.cost


def test_the_lists_fail_too(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, drop=True, when="after"), Fault("GET /v2/pods$", status=500, times=0))
    with pytest.raises(Unreachable):
        desk.make()
    assert desk.states() == ["unresolved"]
    desk.sandbox.clear()
    desk.end()
    assert (desk.sandbox.pods(), desk.states()) == ([], ["gone"])


def test_twins_are_not_both_kept(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, when="after", status=500, pod={"twin": True, "unlisted": 1}))
    attempt = desk.make()
    assert (desk.posts(), desk.created()) == (1, 2)
    assert [pod["id"] for pod in desk.sandbox.pods()] == [attempt.pod]
    assert desk.states() == ["gone", "made"]
    assert desk.file.load().current == attempt
    desk.end()
    assert (desk.sandbox.pods(), desk.states()) == ([], ["gone", "gone"])


def test_a_twin_of_a_good_create_is_ended_with_the_run(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"twin": True}))
    desk.make()
    assert len(desk.sandbox.pods()) == 2
    desk.end()
    assert (desk.sandbox.pods(), desk.states()) == ([], ["gone", "gone"])
    assert all(attempt.spent_usd is not None for attempt in desk.attempts)


def test_what_is_out_of_stock_is_passed_over(desk: Desk) -> None:
    desk.sandbox.fault(no_stock(L4), no_stock(A5000, status=500))
    attempt = desk.make(gpu_types=(L4, A5000, RTX3090))
    assert attempt.gpu_type == RTX3090
    assert desk.states() == ["refused", "refused", "made"]
    assert all("no longer any instances" in (each.refusal or "") for each in desk.attempts[:2])
    assert desk.created() == 1


def test_nothing_is_in_stock(desk: Desk) -> None:
    desk.sandbox.fault(no_stock())
    with pytest.raises(NoCapacity) as caught:
        desk.make(gpu_types=(L4, A5000))
    error = caught.value
    assert (error.exit_code, error.code, error.cost) == (Exit.FAILED, "no_capacity", "")
    assert L4 in error.message
    assert A5000 in error.message
    assert error.details["spent_usd"] == 0
    assert desk.posts() == 4  # each type twice
    assert desk.sandbox.pods() == []
    assert desk.file.load().open == []


def test_the_second_round_finds_what_came_back(desk: Desk) -> None:
    desk.sandbox.fault(no_stock(times=2))
    assert desk.make(gpu_types=(L4, A5000)).gpu_type == L4
    assert desk.posts() == 3


def test_the_search_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "SEARCH_SECONDS", 0.0)
    desk.sandbox.fault(no_stock())
    with pytest.raises(NoCapacity):
        desk.make(gpu_types=(L4, A5000, RTX3090))
    assert desk.posts() == 1


def test_stock_none_is_tried_last(desk: Desk) -> None:
    desk.sandbox.fault(no_stock(L4))
    assert desk.make(gpu_types=(A40, L4)).gpu_type == A40
    assert [call.body["gpu"]["id"] for call in desk.sandbox.calls(CREATES) if call.body] == [L4, A40]


@pytest.mark.parametrize(
    ("status", "kind", "posts"),
    [(401, BadKey, 1), (402, NoBalance, 1), (404, Rejected, 1), (409, Rejected, 1), (422, Rejected, 1)],
)
def test_a_definite_no_is_neither_repeated_nor_searched(
    desk: Desk, status: int, kind: type[RunpodError], posts: int
) -> None:
    desk.sandbox.fault(Fault(CREATES, status=status, times=0))
    with pytest.raises(kind) as caught:
        desk.make(gpu_types=(L4, A5000))
    assert (desk.posts(), desk.states(), caught.value.status) == (posts, ["refused"], status)
    assert desk.sandbox.calls("GET /v2/pods$") == []
    assert caught.value.safe
    assert caught.value.next
    assert desk.end().open == []


def test_a_rule_that_every_type_breaks_is_told_as_such(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=400, detail="disk is too large", times=0))
    with pytest.raises(Rejected, match="disk is too large"):
        desk.make(gpu_types=("auto",))
    assert desk.posts() == create.MOST_REJECTED


def test_a_type_that_the_key_may_not_rent_is_passed_over(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=403, detail="no access to this pool"))
    assert desk.make(gpu_types=(L4, A5000)).gpu_type == A5000
    desk.end()
    desk.sandbox.fault(Fault(CREATES, status=403, detail="no access", times=0))
    with pytest.raises(BadKey):
        desk.make(gpu_types=(L4, A5000))


def test_the_edge_refuses_the_program(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=403, text="error code: 1010", times=0))
    with pytest.raises(Blocked, match="1010"):
        desk.make(gpu_types=(L4, A5000))
    assert desk.posts() == 1


def test_too_many_requests_is_waited_for(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=429, retry_after=12))
    attempt = desk.make()
    assert (attempt.name[-2:], attempt.state, desk.posts()) == ("-1", "made", 2)
    assert 12 <= desk.clock.waited < 20


def test_a_request_that_never_left_is_repeated_once(desk: Desk) -> None:
    gpus = desk.api.gpus(1, "SECURE")
    desk.api.gpus = lambda *_: gpus  # type: ignore[method-assign]
    desk.sandbox.down()
    with pytest.raises(Unreachable):
        desk.make()
    assert desk.states() == ["refused", "refused"]
    desk.sandbox.up()
    assert desk.end().open == []


def test_an_unknown_type_is_an_error_with_a_suggestion(desk: Desk) -> None:
    with pytest.raises(UsageError) as caught:
        desk.make(gpu_types=("RTX 4090",))
    assert "NVIDIA GeForce RTX 4090" in caught.value.next
    assert desk.posts() == 0


@pytest.mark.parametrize("price", [0.89, "0.89"])
def test_a_pod_above_the_cap_is_deleted_at_once(desk: Desk, price: float | str) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"price": price}, times=0))
    with pytest.raises(PriceAbove) as caught:
        desk.make(max_price_per_hour=0.60)
    assert (caught.value.exit_code, caught.value.code) == (Exit.CAPPED, "price_above")
    assert "0.89" in caught.value.message
    [attempt] = desk.attempts
    assert (attempt.state, attempt.price, attempt.ended_by) == ("gone", 0.89, "client")
    assert attempt.spent_usd is not None
    assert desk.sandbox.pods() == []


def test_after_a_dear_pod_comes_the_next_candidate(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"price": 0.89}))
    attempt = desk.make(gpu_types=(L4, A5000), max_price_per_hour=0.60)
    assert (attempt.gpu_type, attempt.price, desk.states()) == (A5000, 0.27, ["gone", "made"])


def test_a_pod_that_is_too_dear_and_will_not_go_ends_the_search(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"price": 0.89, "undying": -1}))
    with pytest.raises(RunpodError) as caught:
        desk.make(gpu_types=(L4, A5000), max_price_per_hour=0.60)
    assert caught.value.exit_code == Exit.POD_ALIVE
    assert desk.posts() == 1


def test_a_price_that_is_not_told_is_never_zero(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"price": "missing"}, times=0))
    attempt = desk.make(max_cost_usd=0.5)
    assert (attempt.state, attempt.price) == ("made", 0.39)
    assert any("does not tell the price" in line for line in desk.told)
    desk.end()
    with pytest.raises(PriceAbove, match="not told"):
        desk.make(max_price_per_hour=0.60)
    assert desk.sandbox.pods() == []


def test_a_price_that_is_told_late_counts(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"price": "missing"}))
    waits: list[float] = []
    real = desk.clock.sleep

    def tells_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        desk.sandbox.quirks(desk.sandbox.pods()[0]["id"], price=0.46)
        real(seconds)

    desk.pace = replace(desk.pace, sleep=tells_meanwhile)
    attempt = desk.make(max_price_per_hour=0.60, max_cost_usd=0.5)
    assert (attempt.price, len(waits)) == (0.46, 1)
    assert at(attempt.deadline_at) - at(attempt.created_at) == timedelta(seconds=3913)  # 65.2 minutes


def test_the_cap_is_on_the_whole_pod(desk: Desk) -> None:
    with pytest.raises(PriceAbove):
        desk.make(gpu_count=2, max_price_per_hour=0.60)
    assert desk.posts() == 0
    assert desk.make(gpu_count=2, max_price_per_hour=0.78).price == 0.78


def test_a_lost_answer_of_a_dear_pod_is_checked_too(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, when="after", status=500, pod={"price": 0.89}, times=0))
    with pytest.raises(PriceAbove):
        desk.make(max_price_per_hour=0.60)
    assert desk.sandbox.pods() == []


@pytest.mark.parametrize("twin", [False, True])
def test_pod_rm_while_the_create_is_under_way(desk: Desk, monkeypatch: pytest.MonkeyPatch, twin: bool) -> None:
    """Its answer comes when the record calls the pod gone: the call is given up, and no pod stays, whichever it is."""
    desk.sandbox.fault(Fault(CREATES, pod={"twin": twin}))
    real = desk.api.create

    def create(body: CreatePod) -> Pod:
        pod = real(body)
        desk.end("stepctl pod rm")
        return pod

    monkeypatch.setattr(desk.api, "create", create)
    with pytest.raises(GivenUp, match="another command"):
        desk.make()
    assert len(desk.end("its call was given up").open) == 0
    assert (desk.sandbox.pods(), set(desk.states())) == ([], {"gone"})


def test_a_twin_that_pod_rm_did_not_see_is_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = desk.api.create

    def create(body: CreatePod) -> Pod:
        other, pod = real(body), real(body)
        desk.sandbox.quirks(pod.id, unlisted=10)
        desk.end("stepctl pod rm")
        assert [attempt.pod for attempt in desk.attempts] == [other.id]
        return pod

    monkeypatch.setattr(desk.api, "create", create)
    with pytest.raises(GivenUp):
        desk.make()
    desk.end("its call was given up")
    assert desk.sandbox.pods() == []
