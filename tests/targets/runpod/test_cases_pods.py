"""Troubles that people had with rented machines, each played from the first request to the last."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.doubles.runpod import Fault, no_stock
from tests.targets.runpod.acting import A40, A5000, L4, RTX3090, RUN, Desk, at

from stepctl.base.errors import Exit
from stepctl.targets.runpod.errors import NoCapacity, PriceAbove, Rejected
from stepctl.targets.runpod.keys import prepare_keys
from stepctl.targets.runpod.ready import KeyRefused, NotReady, Probe, Word, wait_ready
from stepctl.targets.runpod.wants import limit_at

CREATES = r"^POST /v2/pods$"


@pytest.fixture
def desk(desk: Desk) -> Desk:
    """With its keys, as in a call."""
    prepare_keys(desk.api, desk.file)
    return desk


def ok(desk: Desk) -> Probe:
    return times(desk, (0, "ok"))


def times(desk: Desk, *words: tuple[float, Word]) -> Probe:
    """What a login finds from so many seconds on."""
    begun = desk.clock.now()
    return lambda *_: [word for seconds, word in words if desk.clock.now() - begun >= seconds][-1]


# A create answered 500 although the pod had been made and was billing; blind retries made more, and nobody owned the
# first (transformerlab/transformerlab-app#2305, artokun/comfyui-mcp#276, artokun/comfyui-mcp#251).


def test_create_500_but_the_pod_shows_seconds_later(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=500, when="after", pod={"unlisted": 1}))
    made = desk.make()
    assert desk.posts() == 1
    assert RUN in made.name
    assert wait_ready(desk.api, desk.file, made, ok(desk), desk.pace, desk.tell, grace=300).state == "ready"
    desk.end()
    assert desk.sandbox.pods() == []


def test_create_without_an_answer_and_a_pod_that_comes_a_minute_later(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, drop=True, when="after", pod={"unlisted": 6}))
    made = desk.make()
    [first, second] = desk.sandbox.calls(CREATES)
    lists = [call for call in desk.sandbox.calls("GET /v2/pods$") if first.n < call.n < second.n]
    assert len(lists) >= 3
    assert at(desk.attempts[1].asked_at) - at(desk.attempts[0].asked_at) > timedelta(seconds=29.9)
    desk.sandbox.quirks(made.pod, boot=60)
    wait_ready(desk.api, desk.file, made, ok(desk), desk.pace, desk.tell, grace=300)
    desk.end()
    assert desk.created() == 2
    assert desk.sandbox.pods() == []
    assert desk.states() == ["gone", "gone"]


def test_two_pods_bear_the_name(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=500, when="after", pod={"twin": True, "unlisted": 1}))
    desk.make()
    assert len(desk.sandbox.pods()) == 1
    desk.end()
    assert (desk.posts(), desk.sandbox.pods(), desk.states()) == (1, [], ["gone", "gone"])


def test_a_4xx_needs_no_search_and_no_retry_but_for_429(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, status=422))
    with pytest.raises(Rejected):
        desk.make()
    assert desk.sandbox.calls("GET /v2/pods") == []
    desk.sandbox.fault(Fault(CREATES, status=429, retry_after=5))
    assert desk.make().state == "made"
    assert desk.posts() == 3


# RUNNING does not mean reachable; the wait timed out, the handle was lost with the exception, and three pods went on
# billing (dstackai/dstack#2277, dstackai/dstack#1145, telepresenceio/telepresence#40, uda-lab/yomotsusaka#124).


def test_ssh_is_refused_for_a_while(desk: Desk) -> None:
    probe = times(desk, (0, "closed"), (90, "denied"), (94, "ok"))
    desk.sandbox.quirks(boot=40)
    made = desk.make()
    ready = wait_ready(desk.api, desk.file, made, probe, desk.pace, desk.tell, grace=300)
    assert (ready.state, desk.created()) == ("ready", 1)
    assert any("no SSH port" in line for line in desk.told)
    assert any("nobody answers" in line for line in desk.told)
    receipt = desk.end().attempts[0]
    assert receipt.spent_usd is not None
    assert receipt.spent_usd >= 0.39 * 90 / 3600  # waiting is paid for


def test_it_is_running_without_ports_for_ever(desk: Desk) -> None:
    probe = ok(desk)
    desk.sandbox.quirks(boot=100_000)
    made = desk.make()
    assert [attempt.pod for attempt in desk.attempts] == [made.pod]  # stored before the wait begins
    with pytest.raises(NotReady) as caught:
        wait_ready(desk.api, desk.file, made, probe, desk.pace, desk.tell, grace=300)
    assert caught.value.exit_code == Exit.FAILED
    desk.end("not ready")
    assert desk.sandbox.calls(f"^DELETE /v2/pods/{made.pod}")
    assert desk.sandbox.pods() == []


def test_permission_denied_that_stays_is_a_key_problem(desk: Desk) -> None:
    probe = times(desk, (0, "denied"))
    made = desk.make()
    with pytest.raises(KeyRefused, match="key"):
        wait_ready(desk.api, desk.file, made, probe, desk.pace, desk.tell, grace=300)
    assert 58 <= desk.clock.waited < 90


# "No longer any instances available" for one type while the web page still shows it; people got a stack trace, or the
# tool hammered the same type (runpod/runpodctl#189, mlabonne/llm-autoeval#3, dstackai/dstack#1740).

ABCD = (L4, A5000, RTX3090, A40)


def prices(desk: Desk) -> None:
    for gpu, price in zip(ABCD, (0.34, 0.40, 1.99, 0.55), strict=True):
        desk.sandbox.catalog(gpu, secure=price, availability="LOW")


def test_two_types_refused_one_too_dear_and_the_fourth_taken(desk: Desk) -> None:
    prices(desk)
    desk.sandbox.fault(
        no_stock(L4, status=500), Fault(CREATES, body=A5000, status=500, detail="no instances available")
    )
    made = desk.make(gpu_types=ABCD, max_price_per_hour=0.6)
    asked = [call.body["gpu"]["id"] for call in desk.sandbox.calls(CREATES) if call.body]
    assert asked == [L4, A5000, A40]
    assert (made.gpu_type, made.price, desk.created()) == (A40, 0.55, 1)
    lists = len(desk.sandbox.calls("GET /v2/pods$"))
    assert lists == 2  # one look for each refusal by a server that failed


def test_all_types_are_refused(desk: Desk) -> None:
    prices(desk)
    desk.sandbox.fault(Fault(CREATES, status=500, detail="no instances available", times=0))
    with pytest.raises(NoCapacity) as caught:
        desk.make(gpu_types=ABCD, max_price_per_hour=0.6)
    assert all(gpu in caught.value.message for gpu in (L4, A5000, A40))
    asked = [call.body["gpu"]["id"] for call in desk.sandbox.calls(CREATES) if call.body]
    assert {gpu: asked.count(gpu) for gpu in ABCD} == {L4: 2, A5000: 2, RTX3090: 0, A40: 2}
    assert desk.clock.waited < 600
    record = desk.end()
    assert (record.spent_usd, record.open, desk.sandbox.pods()) == (0, [], [])


# The guard checked the quote, the pod cost twice as much; another sent the price of the whole as that of one GPU
# (profullstack/sh1pt#748, skypilot-org/skypilot#9000, skypilot-org/skypilot#8766, corsairdev/corsair#1479).


@pytest.mark.parametrize("told", [0.89, "0.89"])
def test_the_pod_costs_more_than_was_listed(desk: Desk, told: float | str) -> None:
    desk.sandbox.catalog(L4, secure=0.44)
    desk.sandbox.fault(Fault(CREATES, pod={"price": told}))
    with pytest.raises(PriceAbove, match="above max_price_per_hour") as caught:
        desk.make(max_price_per_hour=0.60, max_cost_usd=0.50)
    assert caught.value.exit_code == Exit.CAPPED
    [receipt] = desk.attempts
    assert (receipt.state, receipt.price) == ("gone", 0.89)
    assert caught.value.details["spent_usd"] == receipt.spent_usd
    assert desk.sandbox.pods() == []


def test_the_cost_cap_counts_with_the_real_price(desk: Desk) -> None:
    desk.sandbox.catalog(L4, secure=0.44)
    desk.sandbox.fault(Fault(CREATES, pod={"price": 0.46}))
    wants = {"max_price_per_hour": 0.60, "max_cost_usd": 0.50}
    made = desk.make(**wants)
    assert at(made.deadline_at) - at(made.created_at) == timedelta(seconds=3913)  # 65.2 minutes, not the quote's 68.2
    assert limit_at(desk.wants(**wants), made.listed_price, made.price) == (3913, "cost")


def test_a_pod_that_is_cheaper_than_listed_keeps_the_limit_that_it_was_made_with(desk: Desk) -> None:
    """Its own watchdog counts with the listed price: that is when it ends itself, and what its receipt counts with."""
    desk.sandbox.catalog(L4, secure=0.50)
    desk.sandbox.fault(Fault(CREATES, pod={"price": 0.40}))
    made = desk.make(max_price_per_hour=0.60, max_cost_usd=0.50)
    assert (made.listed_price, made.price) == (0.50, 0.40)
    assert at(made.deadline_at) - at(made.created_at) == timedelta(hours=1)
    assert desk.sandbox.pods()[0]["env"]["STEPCTL_MAX_SECONDS"] == "3600"


def test_the_price_is_missing(desk: Desk) -> None:
    desk.sandbox.fault(Fault(CREATES, pod={"price": "missing"}, times=0))
    with pytest.raises(PriceAbove):
        desk.make(max_price_per_hour=0.60)
    assert desk.sandbox.pods() == []
    made = desk.make()
    assert made.price == made.listed_price == 0.39
    assert any("does not tell the price" in line for line in desk.told)


def test_the_total_of_several_gpus_is_held_against_the_cap(desk: Desk) -> None:
    with pytest.raises(PriceAbove):
        desk.make(gpu_count=2, max_price_per_hour=0.60)
    assert desk.posts() == 0
