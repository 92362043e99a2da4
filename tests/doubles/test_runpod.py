"""The emulated Runpod's API: what it answers, what goes wrong on demand, what the journal tells. Pods are records."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.doubles.runpod import NO_STOCK, Fault, Sandbox, no_stock
from tests.doubles.runpod.contract import find_document

GPU = "NVIDIA GeForce RTX 4090"
CREATES = r"^POST /v2/pods$"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("runpod")) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running: Sandbox) -> Iterator[Sandbox]:
    running.reset()
    yield running
    running.check()


@pytest.fixture
def api(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with client(sandbox, sandbox.key) as http:
        yield http


def client(sandbox: Sandbox, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}", "User-Agent": "tests/1"}
    return httpx.Client(base_url=sandbox.url, headers=headers, timeout=10)


def body(name: str = "one", **more: Any) -> dict[str, Any]:
    given = {"name": name, "image": "i", "gpu": {"id": GPU, "count": 1}, "cloud": "SECURE", "disk": 50}
    return {**given, "ports": ["22/tcp"], "env": {"PUBLIC_KEY": "k"}, **more}


def create(api: httpx.Client, name: str = "one", **more: Any) -> dict[str, Any]:
    answer = api.post("/pods", json=body(name, **more))
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def names(api: httpx.Client) -> list[str]:
    return [pod["name"] for pod in api.get("/pods").json()["pods"]]


def broken(sandbox: Sandbox) -> list[str]:
    """The violations so far, which the test made on purpose."""
    found = sandbox.violations()
    assert found or not find_document()
    return found


def test_a_pod_from_create_to_delete(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.quirks(boot=60, address=5)
    pod = create(api)
    assert (pod["status"], pod["runtime"], pod["ssh"]["direct"], pod["startedAt"]) == ("RUNNING", None, None, None)
    assert pod["cost"] == 0.69 and pod["dataCenterId"] == "EU-RO-1"
    sandbox.advance(61)
    assert api.get(f"/pods/{pod['id']}").json()["ssh"]["direct"] is None
    sandbox.advance(5)
    shown = api.get(f"/pods/{pod['id']}").json()
    assert shown["ssh"]["direct"]["port"] == next(p for p in shown["runtime"]["ports"] if p["private"] == 22)["public"]
    assert names(api) == ["one"]
    gone = api.delete(f"/pods/{pod['id']}")
    assert (gone.status_code, gone.content, names(api)) == (204, b"", [])
    assert api.get(f"/pods/{pod['id']}").status_code == 404
    assert api.delete(f"/pods/{pod['id']}").status_code == 404
    assert [e.event for e in sandbox.events()] == ["created", "started", "ended"]
    assert sandbox.events("ended")[0].who == "account" == sandbox.gone()[0]["endedBy"]
    assert [call.effect for call in sandbox.calls("POST|DELETE")] == [f"created {pod['id']}", f"ended {pod['id']}", ""]


def test_actions_follow_the_status(sandbox: Sandbox, api: httpx.Client) -> None:
    pod = create(api)
    path = f"/pods/{pod['id']}"

    def act(action: str) -> httpx.Response:
        return api.post(f"{path}/action", json={"action": action})

    assert act("start").status_code == 409
    stopped = act("stop").json()
    assert (stopped["status"], stopped["cost"], stopped["ssh"]["direct"]) == ("EXITED", 0.0, None)
    started = act("start").json()
    assert started["ssh"]["direct"]["port"] != pod["ssh"]["direct"]["port"]
    assert act("restart").json()["ssh"]["direct"]["port"] == started["ssh"]["direct"]["port"]
    assert api.patch(path, json={"locked": True, "name": "two"}).json()["name"] == "two"
    assert act("stop").status_code == 409
    assert act("terminate").status_code == 204
    assert act("terminate").status_code == 404


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        (body(bogus=1), 422, "additional properties 'bogus' not allowed"),
        (body(cmd=["x"]), 422, "'cmd'"),
        ({"name": "a", "gpu": {"id": GPU, "count": 1}}, 422, "missing property 'image'"),
        (body(gpu={"id": GPU, "count": 1, "fallback": 1}), 422, "'fallback'"),
        (body(gpu={"id": GPU, "count": None}), 422, "count"),
        (body(env={"A": 1}), 422, "strings"),
        (body(env={f"A{i}": "" for i in range(51)}), 422, "50"),
        (body(disk=True), 422, "disk"),
        (body(cloud="ANY"), 422, "cloud"),
        (body(ports=["22"]), 422, "ports"),
        (body(mounts={"network": [{"volumeId": "v"}]}), 422, "'path'"),
        ({"name": "a", "image": "i"}, 400, "exactly one of gpu or cpu"),
        (body(mounts={"network": []}), 400, "empty"),
        (body(gpu={"id": GPU}), 400, NO_STOCK),
        (body(gpu={"id": "RTX 4090", "count": 1}), 400, NO_STOCK),
        (body(gpu={"id": GPU, "count": 9}), 400, NO_STOCK),
        (body(gpu={"id": GPU, "count": 1, "minCudaVersion": "13.0"}), 400, NO_STOCK),
        (body(dataCenterIds=["XX-1"]), 400, NO_STOCK),
        (body(mounts={"network": [{"volumeId": "none", "path": "/w"}]}), 404, "volume"),
    ],
)
def test_bodies_that_are_refused(
    sandbox: Sandbox, api: httpx.Client, given: dict[str, Any], status: int, says: str
) -> None:
    answer = api.post("/pods", json=given)
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (status, status), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in json.dumps(problem) and problem["title"]
    assert sandbox.pods() == []
    if status == 422 and "A50" not in given.get("env", {}) and given.get("ports") != ["22"]:
        broken(sandbox)  # two rules are told in words only, not in the document


def test_a_volume_ties_the_pod_to_its_data_center(sandbox: Sandbox, api: httpx.Client) -> None:
    volumes = api.get("/network-volumes").json()["networkVolumes"]
    mounts = {"network": [{"volumeId": volumes[0]["id"], "path": "/workspace"}]}
    assert create(api, mounts=mounts)["dataCenterId"] == volumes[0]["dataCenter"] == "EU-RO-1"
    assert api.post("/pods", json=body(mounts=mounts, dataCenterIds=["US-KS-2"])).status_code == 400


def test_keys(sandbox: Sandbox, api: httpx.Client) -> None:
    one, two = create(api, "one"), create(api, "two")
    keys = {pod["id"]: pod["key"] for pod in sandbox.pods()}
    assert "key" not in api.get(f"/pods/{one['id']}").json()
    with client(sandbox, keys[one["id"]]) as own:
        assert own.get(f"/pods/{one['id']}").status_code == 200
        for method, path in (("GET", "/pods"), ("POST", "/pods"), ("DELETE", f"/pods/{two['id']}"), ("GET", "/x")):
            given = {"json": body()} if method == "POST" else {}
            assert own.request(method, path, **given).status_code == (404 if path == "/x" else 403), (method, path)
        assert own.get("/account/secrets").status_code == 403
        assert own.post(f"/pods/{one['id']}/action", json={"action": "terminate"}).status_code == 204
    assert sandbox.events("ended")[0].who == one["id"]
    with client(sandbox, "nobody") as other:
        assert other.get("/pods").status_code == 401
    assert [call.who for call in sandbox.calls("^GET /v2/pods$")] == [one["id"], ""]
    assert httpx.get(f"{sandbox.url}/pods").status_code == 401
    assert httpx.get(sandbox.url.replace("/v2", "/v1/pods")).status_code == 410
    assert api.put("/pods", json={}).headers["allow"] == "GET, POST"
    broken(sandbox)


def test_the_edge_refuses_generic_agents_when_told(sandbox: Sandbox, api: httpx.Client) -> None:
    assert api.get("/pods", headers={"User-Agent": "python-httpx/0.28"}).status_code == 200
    sandbox.settings(edge=True)
    for agent in ("python-httpx/0.28", "curl/8.1", "Python-urllib/3.11", "python-requests/2"):
        answer = api.get("/pods", headers={"User-Agent": agent})
        assert (answer.status_code, answer.text) == (403, "error code: 1010")
    assert api.get("/pods").status_code == 200


def test_the_catalog(sandbox: Sandbox, api: httpx.Client) -> None:
    query = {"include": "AVAILABILITY", "product": "POD", "count": 1, "cloud": "SECURE"}
    gpus = {gpu["id"]: gpu for gpu in api.get("/catalog/gpus", params=query).json()["gpus"]}
    assert (
        "unknown" in gpus and gpus["NVIDIA A40"]["availability"] == "NONE" and "dataCenters" not in gpus["NVIDIA A40"]
    )
    assert gpus[GPU]["price"] == {"secure": 0.69, "community": 0.34}
    sandbox.catalog(GPU, availability="LOW", secure=1.5)
    shown = api.get("/catalog/gpus", params={**query, "minCudaVersion": "12.8"}).json()["gpus"]
    mine = next(gpu for gpu in shown if gpu["id"] == GPU)
    assert (mine["availability"], mine["price"]["secure"]) == ("LOW", 1.5)
    assert mine["cudaVersions"] == [{"version": "12.8", "available": True}]
    assert api.get("/catalog/gpus", params={"include": "AVAILABILITY"}).status_code == 400
    romania = api.get("/catalog/gpus", params={**query, "countryCodes": "RO"}).json()["gpus"]
    assert all(center["id"] == "EU-RO-1" for gpu in romania for center in gpu.get("dataCenters", []))
    centers = api.get("/catalog/datacenters", params={"include": "GPU_AVAILABILITY"}).json()["dataCenters"]
    assert {"id": GPU, "name": "RTX 4090", "availability": "LOW"} in centers[0]["gpuAvailability"]


def test_secrets_and_keys_of_the_account(sandbox: Sandbox, api: httpx.Client) -> None:
    made = api.post("/account/secrets", json={"name": "host_key", "value": "secret-value"})
    assert made.status_code == 201 and "secret-value" not in made.text
    assert api.post("/account/secrets", json={"name": "host_key", "value": "x"}).status_code == 409
    assert api.post("/account/secrets", json={"name": "RUNPOD_x", "value": "x"}).status_code == 422
    listed = api.get("/account/secrets").json()["secrets"]
    assert [secret["name"] for secret in listed] == ["host_key"] and "value" not in listed[0]
    assert sandbox.secrets() == {"host_key": "secret-value"}
    assert "secret-value" not in sandbox.told() + json.dumps([e.body for e in sandbox.calls()])
    assert api.delete(f"/account/secrets/{listed[0]['id']}").status_code == 204
    assert api.delete("/account/secrets/host_key").status_code == 404
    key = "ssh-ed25519 AAAA me"
    assert api.put("/account/ssh-keys", json={"keys": [key]}).json() == api.get("/account/ssh-keys").json()
    assert create(api, startSsh=True, env={})["env"] == {"PUBLIC_KEY": key}


def test_logs_are_streamed(sandbox: Sandbox, api: httpx.Client) -> None:
    pod = create(api)
    for number in range(5):
        sandbox.add_log(pod["id"], f"line {number}")

    def read(**query: Any) -> Iterator[dict[str, Any]]:
        with api.stream("GET", f"/pods/{pod['id']}/logs", params=query) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    lines = read(source="container", tail=2)
    assert [next(lines)["line"], next(lines)["line"]] == ["line 3", "line 4"]
    sandbox.add_log(pod["id"], "later")
    assert next(lines)["line"] == "later"
    assert next(read(source="system"))["line"] == "create container i"
    everything = read(since="2020-01-01T00:00:00Z")
    assert next(everything)["source"] == "system"
    api.delete(f"/pods/{pod['id']}")
    assert [line["line"] for line in everything][-1] == "later"  # it ends with the pod


def test_the_clock_is_in_date_and_created_at(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.advance(-7200)
    answer = api.post("/pods", json=body())
    skewed = time.strftime("%Y-%m-%dT%H", time.gmtime(time.time() - 7200))
    assert answer.json()["createdAt"].startswith(skewed)
    assert time.strftime("%d %b %Y %H:", time.gmtime(time.time() - 7200)) in answer.headers["date"]
    assert answer.headers["x-request-id"] and answer.headers["ratelimit"].startswith('"minute";r=59;')


def test_the_limits_are_enforced_when_told(sandbox: Sandbox, api: httpx.Client) -> None:
    sandbox.settings(limits=True)
    statuses = [api.get("/pods").status_code for _ in range(62)]
    assert statuses == [200] * 60 + [429] * 2
    assert 0 < int(api.get("/pods").headers["retry-after"]) <= 61
    sandbox.advance(61)
    assert api.get("/pods").status_code == 200


def test_lists_are_paged_when_told(sandbox: Sandbox, api: httpx.Client) -> None:
    for number in range(3):
        create(api, f"pod{number}")
    sandbox.settings(page=2)
    first = api.get("/pods").json()
    assert len(first["pods"]) == 2 and first["pagination"]["hasNextPage"]
    second = api.get("/pods", params={"cursor": first["pagination"]["nextCursor"]}).json()
    assert [pod["name"] for pod in second["pods"]] == ["pod2"] and not second["pagination"]["hasNextPage"]


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
