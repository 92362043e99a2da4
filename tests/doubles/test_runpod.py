"""The emulated Runpod's API as it is when nothing goes wrong. Pods are records."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.doubles.runpod import NO_STOCK, Sandbox
from tests.doubles.runpod.asking import GPU, body, client, create, names
from tests.doubles.runpod.contract import find_document


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

    pod = api.get(path).json()
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
        assert own.patch(f"/pods/{one['id']}", json={"name": "x"}).status_code == 403
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
