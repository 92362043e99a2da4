"""The ways in which the Hub fails: each its own message and code, bounded in time, without the token."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.hub import Fault, Hub
from tests.lineage.making import extend, make

from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.buckets.base import BucketError
from stepctl.lineage.buckets.hf_client import TRIES, Client
from stepctl.lineage.buckets.hf_errors import clean, explain
from stepctl.lineage.buckets.hf_session import TIMEOUT_SEC, Unanswered, bounded, timeout_sec
from stepctl.lineage.store import commit, read_lineage, verify

BATCH = "POST .*/batch"
XORB = "POST /cas-.*/xorbs"
DATA = "GET /cas-[^/]+/data/"


def client_of(url: str, token: str | None, waits: list[float] | None = None) -> Client:
    waits = [] if waits is None else waits
    return Client("/".join(url.split("/")[3:5]), token, wait=waits.append, chance=lambda: 0.0)


def failure(act: Callable[[], object]) -> BucketError:
    with pytest.raises(BucketError) as caught:
        act()
    error = caught.value
    assert error.safe
    assert error.next
    for text in (error.message, error.safe, error.next):
        assert "hf_" not in text.replace("hf_hub", "")
        assert "\n" not in text
    return error


@pytest.fixture
def made(hub: Hub, url: str) -> str:
    """A private bucket of user ``u`` with one file."""
    client = client_of(url, hub.write)
    client.create()
    client.add([(b"content", "x")])
    return url


TOKENS = [
    ("wrong", "exists", "hub_token", "refuses the token"),
    ("other", "require", "hub_no_bucket", "there is no bucket"),
    ("read", "check_write", "hub_permission", "no permission"),
    ("read", "add", "hub_permission", "write to"),
    ("read", "delete", "hub_permission", "delete from"),
    ("wrong", "add", "hub_token", "write to"),
]


@pytest.mark.parametrize(("token", "act", "code", "says"), TOKENS)
def test_what_a_token_may_not(hub: Hub, made: str, token: str, act: str, code: str, says: str) -> None:
    client = client_of(made, getattr(hub, token))
    acts: dict[str, Callable[[], object]] = {
        "exists": client.exists,
        "require": client.require,
        "check_write": client.check_write,
        "add": lambda: client.add([(b"1", "y")]),
        "delete": lambda: client.delete(["x"]),
    }
    error = failure(acts[act])
    assert error.code == code
    assert says in error.message
    assert "HF_TOKEN" in error.next


def test_a_bucket_in_a_foreign_namespace_names_the_missing_permission(hub: Hub) -> None:
    error = failure(open_bucket("hf://buckets/v/theirs", hub.write, new=True).check_writable)
    assert error.code == "hub_permission"
    assert "cannot create bucket v/theirs" in error.message
    assert "write permission for the buckets of v" in error.next


def test_no_token_at_all(hub: Hub, made: str) -> None:
    del os.environ["HF_TOKEN"]
    error = failure(client_of(made, None).exists)
    assert error.code == "hub_token"
    assert "HF_TOKEN is not set" in error.message


@pytest.mark.parametrize("token", ["hf_write\nsecret", "hf_write…secret"])
def test_a_token_with_characters_that_none_has(hub: Hub, made: str, token: str) -> None:
    error = failure(client_of(made, token).exists)
    assert error.code == "hub_token"
    assert "secret" not in error.message


def _every(client: Client, tmp_path: Path) -> dict[str, Callable[[], object]]:
    file = client.info(["x"])["x"]

    def again(bucket: str) -> Client:
        return Client(bucket, client._token, wait=client._wait, chance=client._chance)

    return {
        "GET /api/buckets/u/[^/]+$": lambda: again(client.bucket).exists(),
        "/tree": lambda: client.tree("", recursive=True),
        "/paths-info": lambda: client.info(["x"]),
        "/xet-write-token": client.check_write,
        BATCH: lambda: client.add([(b"content", "y")]),
        f"{BATCH}#delete": lambda: client.delete(["x"]),
        "HEAD .*/resolve": lambda: client.download([(file, tmp_path / "to")]),
        "POST /api/buckets/u/[^/]+$": lambda: again(f"{client.bucket}-2").create(),
    }


def test_statuses_by_each_request(hub: Hub, made: str, tmp_path: Path) -> None:
    """The control plane: what passes is repeated, what does not is said at once."""
    expected = {
        401: "hub_token",
        402: "hub_quota",
        403: "hub_permission",
        413: "hub_quota",
        507: "hub_quota",
        429: "hub_rate_limit",
        500: "hub_server",
        503: "hub_server",
        418: "hub_failed",
    }
    waits: list[float] = []
    client = client_of(made, hub.write, waits)
    for match, act in _every(client, tmp_path).items():
        for status, code in expected.items():
            hub.faults(Fault(match.removesuffix("#delete"), status=status))
            hub.clear_requests()
            waits.clear()
            error = failure(act)
            assert (match, status, error.code) == (match, status, code)
            assert client.bucket in error.message
            asked = len(hub.requests(match.removesuffix("#delete")))
            again = status in (429, 500, 503)
            assert asked == (TRIES if again else 1), (match, status)


def test_a_failure_that_passes(hub: Hub, made: str, tmp_path: Path) -> None:
    waits: list[float] = []
    client = client_of(made, hub.write, waits)
    for match, act in _every(client, tmp_path).items():
        faults = [Fault(match.removesuffix("#delete"), nth=1, status=503)]
        faults += [Fault(match.removesuffix("#delete"), nth=2, drop=True)]
        hub.faults(*faults, Fault(match.removesuffix("#delete"), nth=3, status=429, retry_after=7))
        waits.clear()
        act()
        assert waits == [0.5, 1.0, 7.0], match
        client.add([(b"content", "x")])


def test_pauses_are_spread_and_bounded(hub: Hub, made: str) -> None:
    waits: list[float] = []
    client = Client(client_of(made, None).bucket, hub.write, wait=waits.append, chance=lambda: 1.0)
    hub.faults(Fault("/tree", status=500))
    failure(lambda: client.tree("", recursive=True))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    hub.faults(Fault("/tree", nth=1, status=429, headers={"RateLimit": '"api";r=0;t=11'}))
    waits.clear()
    client.tree("", recursive=True)
    assert waits == [12.0]


def test_a_rate_limit_that_is_too_long_says_when(hub: Hub, made: str) -> None:
    waits: list[float] = []
    hub.faults(Fault("/tree", status=429, retry_after=3600))
    error = failure(lambda: client_of(made, hub.write, waits).tree("", recursive=True))
    assert (error.code, waits) == ("hub_rate_limit", [])
    assert "in 3600 seconds" in error.next


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """Little time for each request, and few repeats of the data plane's client."""
    monkeypatch.setenv("STEPCTL_HUB_TIMEOUT", "0.2")
    monkeypatch.setenv("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")


def test_a_hub_that_hangs(hasty: None, hub: Hub, made: str, tmp_path: Path) -> None:
    client = client_of(made, hub.write)
    for match, act in _every(client, tmp_path).items():
        if match == BATCH or "#" in match:
            continue
        hub.faults(Fault(match, hang=True))
        error = failure(act)
        assert (match, error.code) == (match, "hub_timeout")
        assert "within 0.2 seconds" in error.message
    for act in (lambda: client.add([(b"content", "y")]), lambda: client.delete(["x"])):
        hub.faults(Fault(BATCH, hang=True))
        assert failure(act).code == "hub_timeout"


@pytest.mark.parametrize("fault", [{"hang": True}, {"drop": True}, {"half": True}, {"status": 500}, {"status": 507}])
def test_the_data_plane(hasty: None, hub: Hub, made: str, tmp_path: Path, fault: dict[str, bool]) -> None:
    client = client_of(made, hub.write)
    file = client.info(["x"])["x"]
    code = {"status": "hub_server"}.get(next(iter(fault)), "hub_unreachable")
    code = "hub_quota" if 507 in fault.values() else code
    if "half" not in fault:
        hub.faults(Fault(XORB, **fault))  # type: ignore[arg-type]
        assert failure(lambda: client.add([(os.urandom(1000), "y")])).code == code
    hub.faults(Fault(DATA, **fault))  # type: ignore[arg-type]
    assert failure(lambda: client.download([(file, tmp_path / "to")])).code == code


@pytest.mark.parametrize(("status", "code"), [(401, "hub_token"), (403, "hub_permission"), (429, "hub_rate_limit")])
def test_leave_to_upload_that_is_taken_away(hasty: None, hub: Hub, made: str, status: int, code: str) -> None:
    """The data plane's client asks for it, and says only in its message what the Hub answered."""
    hub.faults(Fault("/xet-write-token", status=status))
    assert failure(lambda: client_of(made, hub.write).add([(b"new", "y")])).code == code


def test_tokens_of_the_data_plane_that_expire_are_renewed(hub: Hub, made: str, tmp_path: Path) -> None:
    client = client_of(made, hub.write)
    client.add([(b"1", "y")])
    hub.expire_tokens()
    client.add([(b"2", "z")])
    hub.expire_tokens()
    client.download([(client.info(["z"])["z"], tmp_path / "to")])
    assert (tmp_path / "to").read_bytes() == b"2"


def test_no_network(hub: Hub, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{taken.getsockname()[1]}")
        waits: list[float] = []
        error = failure(client_of(made, hub.write, waits).exists)
    assert error.code == "hub_unreachable"
    assert "Connection refused" in error.message
    assert "HF_ENDPOINT" in error.next
    assert len(waits) == TRIES - 1


def test_offline(hub: Hub, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    waits: list[float] = []
    error = failure(client_of(made, hub.write, waits).exists)
    assert (error.code, waits) == ("hub_offline", [])
    assert error.next == "unset HF_HUB_OFFLINE"


def test_a_full_quota_is_said_in_words_too(hub: Hub, made: str) -> None:
    """Whatever status it comes with; but not because a bucket is called so."""
    hub.faults(Fault(BATCH, status=403, headers={"X-Error-Message": "Private storage limit reached"}))
    assert failure(lambda: client_of(made, hub.write).add([(b"1", "y")])).code == "hub_quota"
    hub.faults()
    error = failure(lambda: client_of("hf://buckets/v/storage-quota", hub.write).create())
    assert error.code == "hub_permission"


def test_a_full_disk_here(hub: Hub) -> None:
    for error in (OSError(28, "No space left on device"), RuntimeError("I/O error: No space left on device")):
        assert explain(error, "read from", "u/x", None).code == "disk_full"


def test_no_secret_gets_into_a_message() -> None:
    text = "Bearer hf_abcdef at https://cdn/x?X-Amz-Signature=abc&y=1 with mytoken and xet:write:1:2"
    assert clean(text, "mytoken") == "Bearer (token) at https://cdn/x with (token) and (token)"
    error = explain(ValueError("Illegal value b'Bearer s3cret' for https://u:s3cret@h/"), "list", "u/x", "s3cret")
    assert "s3cret" not in error.message


@pytest.mark.parametrize(("value", "seconds"), [("", TIMEOUT_SEC), ("5", 5.0), ("x", TIMEOUT_SEC), ("0", 0.01)])
def test_the_time_limit(monkeypatch: pytest.MonkeyPatch, value: str, seconds: float) -> None:
    monkeypatch.setenv("STEPCTL_HUB_TIMEOUT", value)
    assert timeout_sec() == seconds
    assert str(Unanswered()) == "no answer"


def test_others_in_this_process_keep_their_ways(hub: Hub, made: str) -> None:
    """The session is one for the process: a model's download must not meet our limits, not even during our calls."""
    from huggingface_hub import get_session

    client_of(made, hub.write).exists()
    session = get_session()
    assert session.get(f"{hub.url}/api/whoami-v2", headers={"Authorization": f"Bearer {hub.write}"}).status_code == 200
    hub.faults(Fault("whoami", status=503))
    assert session.get(f"{hub.url}/api/whoami-v2").status_code == 503
    with bounded():
        assert session.get(f"{hub.url}/api/whoami-v2").status_code == 503
        hub.faults(Fault("/buckets/", status=503))
        with pytest.raises(Unanswered):
            session.get(f"{hub.url}/api/buckets/u/x")


def test_a_bucket_that_goes_away(hub: Hub, url: str, work: Path) -> None:
    from huggingface_hub import HfApi

    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "a")
    HfApi(endpoint=hub.url, token=hub.write).delete_bucket("/".join(url.split("/")[3:5]))
    assert failure(lambda: read_lineage(bucket, "main")).code == "hub_no_bucket"
    assert failure(lambda: read_lineage(open_bucket(url, hub.write), "main")).code == "hub_no_bucket"
    assert commit(open_bucket(url, hub.write, new=True), *make(work / "2", "b")).head == "00000001-b"


def test_a_commit_that_the_hub_refuses_leaves_the_head(hub: Hub, url: str, work: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "a")
    for number, fault in enumerate(
        (Fault(XORB, status=507), Fault(BATCH, status=413), Fault(BATCH, nth=2, status=413))
    ):
        hub.faults(fault)
        assert failure(lambda n=number: extend(bucket, work / str(n), f"b{n}")).code == "hub_quota"
        hub.faults()
        assert read_lineage(bucket, "main").parent == "00000001-a"
        assert verify(bucket, "main").damages == []
