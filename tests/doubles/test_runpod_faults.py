"""What goes wrong on demand in the emulated Runpod, and what the journal tells of it. Pods are records."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from typing import Any

import httpx
import pytest
from tests.doubles.runpod import NO_STOCK, Fault, Sandbox, no_stock
from tests.doubles.runpod.asking import CREATES, body, client, create, names
from tests.doubles.runpod.contract import find_document


def test_no_stock_of_some_types(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.fault(no_stock("NVIDIA L4", "NVIDIA A40"), no_stock("NVIDIA L40S", status=500))
    answer = api.post("/pods", json=body(gpu={"id": "NVIDIA L4", "count": 1}))
    assert (answer.status_code, answer.json()["detail"]) == (400, NO_STOCK)
    answer = api.post("/pods", json=body(gpu={"id": "NVIDIA L40S", "count": 1}))
    assert answer.status_code == 500 and NO_STOCK in answer.json()["detail"]
    create(api)


def test_a_fault_meets_the_nth_call_so_often(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.fault(Fault("^GET /v2/pods$", nth=2, times=2, status=429, retry_after=3))
    answers = [api.get("/pods") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 429, 429, 200, 200]
    assert answers[1].headers["retry-after"] == "3"
    sandbox.fault(
        Fault("^GET", times=0, status=402, detail="insufficient balance"), Fault("^GET", status=200, text="?")
    )
    assert api.get("/pods").json()["detail"] == "insufficient balance"
    sandbox.clear()
    sandbox.fault(Fault("^GET", status=200, text="<html>"))
    assert api.get("/pods").text == "<html>" and api.get("/pods").json() == {"pods": []}


def test_calls_that_count_only_after_another_one(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.fault(Fault("^GET /v2/pods$", since=CREATES, nth=2, status=503))
    assert api.get("/pods").status_code == api.get("/pods").status_code == 200
    create(api)
    assert [api.get("/pods").status_code for _ in range(3)] == [200, 503, 200]


def test_answers_that_lie_or_are_lost(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.fault(
        Fault(CREATES, body="before", status=502),
        Fault(CREATES, body="after", when="after", status=500),
        Fault(CREATES, body="lost", when="after", drop=True),
        Fault(CREATES, body="never", drop=True),
    )
    assert api.post("/pods", json=body("before")).status_code == 502
    assert api.post("/pods", json=body("after")).status_code == 500
    for name in ("lost", "never"):
        with pytest.raises(httpx.RemoteProtocolError):
            api.post("/pods", json=body(name))
    assert names(api) == ["after", "lost"]
    calls = sandbox.calls(CREATES)
    assert [call.status for call in calls] == [502, 500, 0, 0]
    assert [call.effect.split(" ")[0] for call in calls] == ["", "created", "created", ""]


def test_a_delay_is_a_time_out(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.fault(Fault(CREATES, when="after", delay=0.5))
    with pytest.raises(httpx.ReadTimeout):
        api.post("/pods", json=body(), timeout=0.1)
    assert names(api) == ["one"]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_is_held_at_exactly_one_point(sandbox: Sandbox, api: httpx.Client, when: Any, lost: bool) -> None:
    sandbox.fault(Fault(CREATES, nth=2, when=when, hold=True))
    create(api, "first")
    outcome: list[Any] = []

    def second() -> None:
        try:
            outcome.append(api.post("/pods", json=body("second")).status_code)
        except httpx.HTTPError as error:
            outcome.append(type(error))

    thread = threading.Thread(target=second)
    thread.start()
    assert sandbox.wait_held(unless=lambda: not thread.is_alive())
    assert [call["target"] for call in sandbox.held()] == ["POST /v2/pods"] and not outcome
    assert len(sandbox.pods()) == (1 if when == "before" else 2)
    sandbox.release(lost=lost)
    thread.join(10)
    assert outcome == [httpx.RemoteProtocolError if lost else 201]
    assert len(sandbox.pods()) == (1 if lost and when == "before" else 2)
    assert sandbox.wait_held(unless=lambda: True) is False


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_is_killed_at_exactly_one_point(sandbox: Sandbox, when: Any) -> None:
    sandbox.fault(Fault(CREATES, when=when, hold=True))
    curl = ["curl", "-s", "-H", f"Authorization: Bearer {sandbox.key}", "-H", "Content-Type: application/json"]
    with subprocess.Popen([*curl, "-d", json.dumps(body()), f"{sandbox.url}/pods"]) as client:
        assert sandbox.wait_held(unless=lambda: client.poll() is not None)
        client.kill()
    assert len(sandbox.pods()) == (when == "after")
    sandbox.release()
    sandbox.wait_event("created")  # what was on its way arrives


def test_pods_that_appear_late_and_twins(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.fault(Fault(CREATES, nth=2, pod={"unlisted": 2, "unfound": 1, "twin": True}))
    create(api, "plain")
    pod = create(api, "late")
    assert [names(api) for _ in range(3)] == [["plain"], ["plain"], ["plain", "late", "late"]]
    assert [api.get(f"/pods/{pod['id']}").status_code for _ in range(2)] == [404, 200]
    assert sandbox.events("created")[2].note == "twin"


def test_prices_other_than_listed(sandbox: Sandbox, api: httpx.Client) -> None:
    prices = [2.5, "0.69", "missing"]
    sandbox.fault(*(Fault(CREATES, nth=n, pod={"price": price}) for n, price in enumerate(prices, 1)))
    made = [create(api, f"pod{n}") for n in range(4)]
    assert [pod.get("cost", "missing") for pod in made] == [*prices, 0.69]
    assert [pod.get("cost", "missing") for pod in api.get("/pods").json()["pods"]] == [*prices, 0.69]


def test_pods_that_end_by_themselves_or_do_not_end(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.quirks(lingers=1)
    sandbox.fault(
        Fault(CREATES, body="vanishing", pod={"vanish": 30}),
        Fault(CREATES, body="exiting", pod={"exit": 30}),
        Fault(CREATES, body="undying", pod={"undying": 2}),
        Fault(CREATES, body="slow", pod={"end": 2}),
    )
    ids = {name: create(api, name)["id"] for name in ("vanishing", "exiting", "undying", "slow")}
    sandbox.advance(31)
    assert names(api) == ["exiting", "undying", "slow"]
    assert sandbox.events("ended", "vanishing")[0].who == "provider"
    assert api.get(f"/pods/{ids['exiting']}").json()["status"] == "EXITED"
    assert [api.delete(f"/pods/{ids['undying']}").status_code for _ in range(2)] == [204, 204]
    assert "undying" in names(api)
    assert api.delete(f"/pods/{ids['undying']}").status_code == 204 and "undying" not in names(api)
    assert api.get(f"/pods/{ids['undying']}").json()["status"] == "TERMINATED"
    assert api.get(f"/pods/{ids['undying']}").status_code == 404
    assert api.delete(f"/pods/{ids['slow']}").status_code == 204 and "slow" in names(api)
    sandbox.advance(2)
    assert names(api) == ["exiting"]
    sandbox.end(ids["exiting"])
    assert sandbox.pods() == [] and len(sandbox.gone()) == 4


def test_the_api_is_down_for_a_while(sandbox: Sandbox, api: httpx.Client) -> None:
    create(api)
    sandbox.down()
    with pytest.raises(httpx.TransportError):
        api.get("/pods")
    with pytest.raises(httpx.ConnectError):
        api.get("/pods")
    sandbox.up()
    assert names(api) == ["one"]
    sandbox.down(0.1)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            return None if names(api) == ["one"] else pytest.fail("another list")
        except httpx.TransportError:
            time.sleep(0.02)
    pytest.fail("it stays down")


def test_faults_of_one_caller(sandbox: Sandbox, api: httpx.Client) -> None:
    pod = create(api)
    sandbox.fault(Fault(who="pod", times=0, status=500))
    assert api.get(f"/pods/{pod['id']}").status_code == 200
    with client(sandbox, sandbox.pods()[0]["key"]) as own:
        assert own.get(f"/pods/{pod['id']}").status_code == 500
        sandbox.clear()
        sandbox.fault(Fault(who="one", status=503))
        assert [own.get(f"/pods/{pod['id']}").status_code for _ in range(2)] == [503, 200]


def test_what_breaks_the_contract_fails_the_test(sandbox: Sandbox, api: httpx.Client) -> None:
    if not find_document():
        pytest.skip("the provider's document is not beside this checkout")
    api.post("/pods", json=body(bogus=1))
    api.get("/nothing")
    with pytest.raises(AssertionError, match=r"(?s)bogus.*/v2/nothing: PathNotFound"):
        sandbox.check()
    sandbox.check()  # told once
    sandbox.fault(Fault("^GET", status=418), Fault("^GET", nth=2, status=200, text="[]"))
    api.get("/pods"), api.get("/pods")
    sandbox.check()  # what was asked for is not counted


def test_mistakes_with_the_control_are_told(sandbox: Sandbox) -> None:
    with pytest.raises(AssertionError, match="unexpected keyword argument 'statsu'"):
        sandbox.ask("fault", statsu=1)
    with pytest.raises(AssertionError, match="there are: about, fault"):
        sandbox.ask("explode")
    with pytest.raises(AssertionError, match="bot"):
        sandbox.quirks(bot=1)
    assert "fault" in httpx.get(sandbox.control).json()["value"]
