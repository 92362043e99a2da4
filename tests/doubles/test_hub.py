"""The emulated Hub, by the unmodified client library."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub._buckets import BucketFile
from huggingface_hub.errors import (
    BucketBatchError,
    BucketNotFoundError,
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tests.doubles.hub import Fault, Hub
from tests.doubles.hub.client import ROOT, fresh_client
from tests.doubles.hub.faults import When

MB = 1 << 20
WHEN: tuple[When, ...] = ("before", "after")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def hub(running: Hub) -> Hub:
    """The Hub without faults, with an empty log."""
    running.faults()
    running.clock()
    running.settings()
    running.clear_requests()
    return running


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with fresh_client(tmp_path / "home"):
        yield tmp_path / "home"


@pytest.fixture
def api(hub: Hub, home: Path) -> HfApi:
    return HfApi(endpoint=hub.url, token=hub.write)


@pytest.fixture
def bucket(api: HfApi, tmp_path: Path) -> str:
    """A private bucket of this test's own."""
    id_ = f"u/{tmp_path.name}"
    api.create_bucket(id_, private=True)
    return id_


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def call(hub: Hub, method: str, path: str, body: Any = None, token: str = Hub.write) -> tuple[int, Any, dict[str, str]]:
    """One plain request, without the client library's retries: status, JSON, headers."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(hub.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"null"), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null"), dict(error.headers)


def fetch(api: HfApi, bucket: str, path: str, into: Path) -> bytes:
    api.download_bucket_files(bucket, [(path, into)], raise_on_missing_files=True)
    return into.read_bytes()


# Buckets.


def test_what_was_uploaded_is_listed_and_comes_back(hub: Hub, api: HfApi, bucket: str, tmp_path: Path) -> None:
    text = b"".join(b"line %d of a text that packs well\n" % i for i in range(9000))
    numbers = b"".join((1000 + i % 77).to_bytes(4, "little") for i in range(60000))
    files = {"a/noise": noise(MB), "a/b/text": text, "a/numbers": numbers, "a/empty": b"", "é ü/?#%": b"x"}
    (tmp_path / "source").write_bytes(files["a/noise"])
    os.utime(tmp_path / "source", (1700000000, 1700000000))
    sources: list[tuple[str | Path | bytes, str]] = [
        (data if path != "a/noise" else tmp_path / "source", path) for path, data in files.items()
    ]
    api.batch_bucket_files(bucket, add=sources)

    listed = {file.path: file for file in api.list_bucket_tree(bucket, recursive=True) if isinstance(file, BucketFile)}
    assert {path: file.size for path, file in listed.items()} == {path: len(data) for path, data in files.items()}
    assert listed["a/noise"].mtime == datetime.fromtimestamp(1700000000, UTC)
    assert listed["a/noise"].uploaded_at == datetime.fromisoformat(hub.stored(bucket)["a/noise"].uploaded)
    info = api.bucket_info(bucket)
    assert (info.private, info.total_files, info.size) == (True, 5, sum(map(len, files.values())))
    for number, (path, data) in enumerate(files.items()):
        assert hub.content(bucket, path) == data, path
        assert fetch(api, bucket, path, tmp_path / f"got{number}") == data, path
        assert len(call(hub, "HEAD", f"/buckets/{bucket}/resolve/a%2Fnoise")[2]["X-Xet-Hash"]) == 64

    [known] = api.get_bucket_paths_info(bucket, ["a/noise", "nothing"])
    assert (known.path, known.xet_hash) == ("a/noise", listed["a/noise"].xet_hash)
    api.batch_bucket_files(bucket, copy=[("bucket", bucket, known.xet_hash, "copy")], delete=["a/noise", "a/empty"])
    assert set(hub.stored(bucket)) == {"a/b/text", "a/numbers", "copy", "é ü/?#%"}
    with pytest.raises(EntryNotFoundError):
        fetch(api, bucket, "a/noise", tmp_path / "gone")


def test_listings_come_in_pages_and_match_prefixes_as_text(hub: Hub, api: HfApi, bucket: str) -> None:
    paths = [f"one/pre/{i}" for i in range(5)] + ["one/pre.json", "one/x/y", "top"]
    api.batch_bucket_files(bucket, add=[(path.encode(), path) for path in paths])
    hub.settings(page=2)
    hub.clear_requests()
    assert sorted(file.path for file in api.list_bucket_tree(bucket, recursive=True)) == sorted(paths)
    assert len(hub.requests("/tree")) == 4
    assert [f.path for f in api.list_bucket_tree(bucket, "one/pre", recursive=True)] == ["one/pre.json", *paths[:5]]
    assert [f.path for f in api.list_bucket_tree(bucket, "one/pre/", recursive=True)] == paths[:5]
    level = {file.path: file.type for file in api.list_bucket_tree(bucket)}
    assert level == {"one": "directory", "top": "file"}
    level = {file.path: file.type for file in api.list_bucket_tree(bucket, "one/")}
    assert level == {"one/pre": "directory", "one/x": "directory", "one/pre.json": "file"}
    assert list(api.list_bucket_tree(bucket, "nothing")) == []


def test_the_name_is_the_users_own(hub: Hub, api: HfApi) -> None:
    assert api.create_bucket("plain").bucket_id == "u/plain"
    assert api.create_bucket("u/plain", exist_ok=True).bucket_id == "u/plain"
    with pytest.raises(HfHubHTTPError) as error:
        api.create_bucket("u/plain")
    assert error.value.response.status_code == 409
    with pytest.raises(HfHubHTTPError) as error:
        api.create_bucket("v/plain")
    assert error.value.response.status_code == 403
    assert "u/plain" in [found.id for found in api.list_buckets()]
    api.delete_bucket("u/plain")
    with pytest.raises(BucketNotFoundError):
        api.bucket_info("u/plain")


def test_what_each_token_may_do(hub: Hub, api: HfApi, bucket: str) -> None:
    assert api.whoami()["name"] == "u"
    api.batch_bucket_files(bucket, add=[(b"1", "x")])
    delete = json.dumps({"type": "deleteFile", "path": "x"}).encode()
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"/api/buckets/{bucket}/tree", None),
        ("GET", f"/api/buckets/{bucket}/xet-write-token", None),
        ("POST", f"/api/buckets/{bucket}/batch", delete),
        ("POST", "/api/buckets/u/new", {}),
    ]
    expected = {hub.read: [200, 403, 403, 403], hub.other: [404, 404, 404, 403], hub.wrong: [401] * 4}
    for token, statuses in expected.items():
        assert [call(hub, *ask, token=token)[0] for ask in asked] == statuses, token
    assert set(hub.stored(bucket)) == {"x"}
    with pytest.raises(BucketNotFoundError):
        api.bucket_info(bucket, token=hub.other)
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        api.bucket_info(bucket, token=hub.wrong)
    with pytest.raises(ConnectionError, match="403"):
        api.batch_bucket_files(bucket, add=[(b"2", "y")], token=hub.read)


def test_a_batch_is_not_a_transaction(api: HfApi, bucket: str, hub: Hub) -> None:
    with pytest.raises(BucketBatchError) as error:
        api.batch_bucket_files(bucket, add=[(b"1", "x"), (b"2", "../y")], delete=["nothing"])
    assert [failure["path"] for failure in error.value.failures] == ["../y", "nothing"]
    assert set(hub.stored(bucket)) == {"x"}
    with pytest.raises(BucketBatchError):
        api.batch_bucket_files(bucket, delete=["nothing"])


def test_time_goes_on_unless_a_test_wants_a_tie(hub: Hub, api: HfApi, bucket: str) -> None:
    for path in "abc":
        api.batch_bucket_files(bucket, add=[(b"1", path)])
    times = [file.uploaded for file in hub.stored(bucket).values()]
    assert times == sorted(set(times))
    hub.clock(datetime(2026, 1, 1, tzinfo=UTC), step_ms=0)
    for path in "abc":
        api.batch_bucket_files(bucket, add=[(b"2", path)])
    assert {file.uploaded for file in hub.stored(bucket).values()} == {"2026-01-01T00:00:00.000Z"}
    hub.date(bucket, "b", datetime(2025, 1, 1, tzinfo=UTC))
    assert hub.stored(bucket)["b"].uploaded == "2025-01-01T00:00:00.000Z"


# The xet data plane.


def test_bytes_that_are_stored_are_not_sent_again(hub: Hub, api: HfApi, bucket: str, tmp_path: Path) -> None:
    data = noise(3 * MB, seed=1)
    api.batch_bucket_files(bucket, add=[(data, "a")])
    assert hub.up("/xorbs/") > 3 * MB
    block = noise(MB // 4, seed=2)
    for changed, most in ((data, 0), (data[:MB] + block + data[MB + len(block) :], 3 * len(block))):
        with fresh_client(tmp_path / f"home{most}"):  # another machine: nothing in its own cache
            hub.clear_requests()
            api.batch_bucket_files(bucket, add=[(changed, "b")])
            assert hub.up("/xorbs/") <= most
            assert hub.up() < most + 40_000
            assert fetch(api, bucket, "b", tmp_path / "b") == changed
            assert hub.content(bucket, "b") == changed


def test_damage_behind_the_clients_back(hub: Hub, api: HfApi, bucket: str, tmp_path: Path) -> None:
    data = noise(300_000, seed=3)
    api.batch_bucket_files(bucket, add=[(data, "x"), (data[:1000], "whole"), (b"", "empty")])
    listed = hub.stored(bucket)
    hub.flip(bucket, "x", 123_456)
    got = fetch(api, bucket, "x", tmp_path / "x")  # without an error
    assert [at for at in range(len(data)) if got[at] != data[at]] == [123_456]
    hub.flip(bucket, "x", -1)
    assert fetch(api, bucket, "x", tmp_path / "x")[-1] == data[-1] ^ 255
    hub.truncate(bucket, "x", 200_000)
    with pytest.raises(RuntimeError, match="size mismatch"):
        fetch(api, bucket, "x", tmp_path / "x")
    hub.lose(bucket, "x")
    with pytest.raises(RuntimeError, match="404"):
        fetch(api, bucket, "x", tmp_path / "x")
    assert hub.stored(bucket) == listed
    assert fetch(api, bucket, "whole", tmp_path / "whole") == data[:1000]
    hub.remove(bucket, "x")
    assert set(hub.stored(bucket)) == {"whole", "empty"}


def test_xet_tokens_expire_and_the_client_refreshes_them(hub: Hub, api: HfApi, bucket: str, tmp_path: Path) -> None:
    api.batch_bucket_files(bucket, add=[(noise(1000, seed=4), "x")])
    assert len(hub.requests("xet-write-token")) == 1
    hub.settings(ttl=5)  # less than the client leaves to spare
    hub.clear_requests()
    api.batch_bucket_files(bucket, add=[(noise(1000, seed=5), "y")])
    assert len(hub.requests("xet-write-token")) > 2

    def status(token: str) -> int:
        name = hub.requests("v1/shards")[0].path.split("/")[1]
        return call(hub, "GET", f"/{name}/v1/reconstructions/{hub.stored(bucket)['x'].hash}", token=token)[0]

    answer = call(hub, "GET", f"/api/buckets/{bucket}/xet-read-token")[1]
    assert status(answer["accessToken"]) == 200
    assert status("xet:read:1:1") == 401
    hub.expire_tokens()
    assert status(answer["accessToken"]) == 401
    hub.settings(ttl=-5)
    late = call(hub, "GET", f"/api/buckets/{bucket}/xet-read-token")[1]
    assert status(late["accessToken"]) == 401
    hub.settings()
    assert len(fetch(api, bucket, "x", tmp_path / "x")) == 1000


# Faults.


def test_the_log_names_every_request_of_an_upload(hub: Hub, api: HfApi, bucket: str) -> None:
    hub.clear_requests()
    api.batch_bucket_files(bucket, add=[(noise(5000, seed=6), "x")])
    log = hub.requests()
    assert [entry.status for entry in log if entry.path.startswith("/api")] == [200, 200]
    assert [entry.number for entry in log] == list(range(len(log)))
    [batch] = hub.requests("POST .*/batch$")
    assert (batch.user, batch.path, batch.status) == ("u", f"/api/buckets/{bucket}/batch", 200)
    assert batch.bytes_in > 100 and batch.bytes_out > 50
    assert 5000 < hub.up("/xorbs/") < 5100


def make(hub: Hub, name: str) -> tuple[int, Any, dict[str, str]]:
    """A request with an effect that is easily seen."""
    return call(hub, "POST", f"/api/buckets/u/{name}", {})


def made(hub: Hub, name: str) -> bool:
    hub.faults()
    return call(hub, "GET", f"/api/buckets/u/{name}")[0] == 200


@pytest.mark.parametrize("when", WHEN)
def test_another_status_at_the_nth_request(hub: Hub, when: When) -> None:
    hub.faults(
        Fault("POST /api/buckets/u/status", nth=2, when=when, status=429, retry_after=7, headers={"X-More": "1"})
    )
    names = [f"status-{when}-{number}" for number in range(3)]
    answers = [make(hub, name) for name in names]
    assert [answer[0] for answer in answers] == [200, 429, 200]
    assert (answers[1][2]["Retry-After"], answers[1][2]["X-More"]) == ("7", "1")
    assert [entry.faults for entry in hub.requests("/status")] == [[], [0], []]
    assert [made(hub, name) for name in names] == [True, when == "after", True]
    hub.faults(Fault("whoami", status=507, body={"error": "full"}), Fault("bucket", status=403))
    assert call(hub, "GET", "/api/whoami-v2")[:2] == (507, {"error": "full"})
    assert [make(hub, "status-x")[0] for _ in range(2)] == [403, 403]


@pytest.mark.parametrize("when", WHEN)
def test_a_dropped_connection(hub: Hub, when: When) -> None:
    hub.faults(Fault("/drop", nth=1, when=when, drop=True))
    with pytest.raises(ConnectionError):
        make(hub, f"drop-{when}")
    assert hub.requests("/drop")[0].status == 0
    assert made(hub, f"drop-{when}") is (when == "after")


def test_half_an_answer_and_a_late_one(hub: Hub) -> None:
    hub.faults(Fault("/half", nth=1, half=True))
    with pytest.raises(http.client.IncompleteRead):
        make(hub, "half")
    assert made(hub, "half")
    for when in WHEN:
        hub.faults(Fault("/late", delay=0.1, when=when))
        start = time.monotonic()
        assert make(hub, f"late-{when}")[0] == 200
        assert time.monotonic() - start >= 0.1


@pytest.mark.parametrize("when", WHEN)
def test_a_request_that_hangs_until_it_may_go_on(hub: Hub, when: When) -> None:
    hub.faults(Fault("POST .*/hang", nth=1, hang=True, when=when))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(make, hub, f"hang-{when}")
        hub.wait_held()
        assert (call(hub, "GET", f"/api/buckets/u/hang-{when}")[0] == 200) is (when == "after")
        assert not answer.done()
        hub.release()
        assert answer.result()[0] == 200
    assert made(hub, f"hang-{when}")


def test_a_batch_that_is_applied_in_part(hub: Hub, api: HfApi, bucket: str) -> None:
    hub.faults(Fault("/batch", refuse="^b"))
    with pytest.raises(BucketBatchError, match="1 out of 2"):
        api.batch_bucket_files(bucket, add=[(b"1", "a"), (b"1", "b")])
    assert set(hub.stored(bucket)) == {"a"}
    hub.faults(Fault("/batch", nth=1, cut=1))
    lines = b"".join(json.dumps({"type": "deleteFile", "path": path}).encode() + b"\n" for path in ("a", "x", "y"))
    with pytest.raises(ConnectionError):
        call(hub, "POST", f"/api/buckets/{bucket}/batch", lines)
    assert hub.stored(bucket) == {}


def test_the_xet_client_tries_again(hub: Hub, api: HfApi, bucket: str, tmp_path: Path) -> None:
    data = noise(MB, seed=7)
    failing = [Fault(f"POST .*/{part}", nth=1, status=503) for part in ("v1/xorbs", "v1/shards")]
    hub.faults(*failing, Fault("xet-write-token", nth=1, drop=True))
    api.batch_bucket_files(bucket, add=[(data, "x")])
    assert {entry.status for entry in hub.requests() if entry.faults} == {503, 0}
    hub.faults(Fault("/data/", nth=1, half=True), Fault("v1/reconstructions", nth=1, drop=True))
    assert fetch(api, bucket, "x", tmp_path / "x") == data
    hub.faults(Fault("v1/xorbs", status=413))
    with pytest.raises(ConnectionError, match="413"):
        api.batch_bucket_files(bucket, add=[(noise(100, seed=8), "y")])
    hub.faults(Fault("/batch", status=507))
    with pytest.raises(HfHubHTTPError, match="507"):
        api.batch_bucket_files(bucket, add=[(b"z", "z")])
    assert set(hub.stored(bucket)) == {"x"}


# Processes.

UPLOAD = """
import sys
from huggingface_hub import HfApi
bucket, name, count = sys.argv[1:]
for number in range(int(count)):
    HfApi().batch_bucket_files(bucket, add=[(f"{name} {number}".encode(), f"{name}/{number}")])
"""


def start(hub: Hub, home: Path, *args: object) -> subprocess.Popen[bytes]:
    """A client of its own, in a process group of its own."""
    env = {**os.environ, **hub.env(home)}
    command = [sys.executable, "-c", UPLOAD, *map(str, args)]
    return subprocess.Popen(command, env=env, cwd=ROOT, start_new_session=True)


@pytest.mark.parametrize("when", WHEN)
def test_a_client_is_killed_at_one_request(hub: Hub, bucket: str, tmp_path: Path, when: When) -> None:
    hub.faults(Fault("POST .*/batch", nth=2, kill=str(tmp_path / "pid"), when=when))
    client = start(hub, tmp_path / "other", bucket, "x", 3)
    (tmp_path / "pid").write_text(str(client.pid))
    assert client.wait(60) == -signal.SIGKILL
    assert set(hub.stored(bucket)) == ({"x/0", "x/1"} if when == "after" else {"x/0"})
    assert [entry.status for entry in hub.requests("/batch")] == [200, 0]


def test_two_clients_at_once(hub: Hub, bucket: str, tmp_path: Path) -> None:
    clients = [start(hub, tmp_path / name, bucket, name, 5) for name in ("a", "b")]
    assert [client.wait(60) for client in clients] == [0, 0]
    assert set(hub.stored(bucket)) == {f"{name}/{number}" for name in "ab" for number in range(5)}
    assert hub.content(bucket, "b/3") == b"b 3"
    times = [file.uploaded for file in hub.stored(bucket).values()]
    assert len(set(times)) == 10


def test_the_state_outlives_the_server(tmp_path: Path, home: Path) -> None:
    with Hub(tmp_path / "hub", tokens={"hf_more": "w:write"}) as hub:
        api = HfApi(endpoint=hub.url, token=hub.write)
        api.create_bucket("u/one")
        api.batch_bucket_files("u/one", add=[(noise(100_000), "x"), (b"y", "y")])
        hub.flip("u/one", "x", 5)
        before = hub.stored("u/one")
        hub.stop()
        hub.start()
        assert hub.stored("u/one") == before
        assert fetch(api, "u/one", "x", tmp_path / "x")[6:] == noise(100_000)[6:]
        assert hub.content("u/one", "x") == (tmp_path / "x").read_bytes() != noise(100_000)
        hub.clear_requests()
        api.batch_bucket_files("u/one", add=[(noise(100_000), "z")])
        assert hub.up("/xorbs/") == 0
        assert api.create_bucket("w/two", token="hf_more").bucket_id == "w/two"


# Model repositories.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights.bin").write_bytes(noise(100_000))
    return folder


def test_files_of_a_model_at_a_revision(hub: Hub, home: Path, model: Path, tmp_path: Path) -> None:
    first = hub.add_model("u/model", model)
    (model / "config.json").write_text('{"new": 1}')
    second = hub.add_model("u/model", model)
    api = HfApi(endpoint=hub.url, token=False)
    info = api.model_info("u/model")
    assert (info.sha, first != second) == (second, True)
    assert [file.rfilename for file in info.siblings or []] == ["config.json", "sub/weights.bin"]
    assert [file.path for file in api.list_repo_tree("u/model", recursive=True)] == [
        "config.json",
        "sub",
        "sub/weights.bin",
    ]
    where: dict[str, Any] = {"endpoint": hub.url, "cache_dir": tmp_path / "cache", "token": False}
    whole = Path(snapshot_download("u/model", **where))
    assert whole.name == second
    assert (whole / "sub" / "weights.bin").read_bytes() == noise(100_000)
    old = hf_hub_download("u/model", "config.json", revision=first, **where)
    assert Path(old).read_text() == "{}"
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("u/model", "nothing.json", **where)
    with pytest.raises(RevisionNotFoundError):
        api.model_info("u/model", revision="nothing")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("u/nothing")


def test_a_private_model(hub: Hub, home: Path, model: Path) -> None:
    hub.add_model("u/secret", model, private=True)
    assert HfApi(endpoint=hub.url, token=hub.read).model_info("u/secret").sha
    for token in (hub.other, False):
        with pytest.raises(RepositoryNotFoundError):
            HfApi(endpoint=hub.url, token=token).model_info("u/secret")


LOAD = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained("tiny/model") for kind in (AutoModelForCausalLM, AutoTokenizer))
print(sum(p.numel() for p in model.parameters()), tokenizer("four")["input_ids"])
"""


@pytest.mark.torch
def test_a_model_is_loaded_by_its_name(hub: Hub, tmp_path: Path) -> None:
    from tests.trainer.tiny import build_tiny

    hub.add_model("tiny/model", build_tiny(tmp_path / "tiny"))
    env = {**os.environ, **hub.env(tmp_path / "home")}
    said = subprocess.run([sys.executable, "-c", LOAD], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(said.split()[0]) > 10_000
    assert hub.down("/tiny/model/resolve/.*/model.safetensors") > 40_000
