"""What is asked for, how long a pod may live, and what an answer's price and times mean."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.targets.runpod.acting import IMAGE, RUN

from stepctl.config.model import RunpodTarget
from stepctl.runs.pods import Attempt, PodRecord
from stepctl.targets.runpod.records import CreatePod, moment, read_pod, usd
from stepctl.targets.runpod.wants import Wants, body_of, limit_of, next_name, pod_name, run_of, wants_of


def wants(**more: Any) -> Wants:
    return Wants(**{"run": RUN, "max_hours": 2.0, "image": IMAGE, **more})


def test_the_targets_recorded_options_are_enough() -> None:
    target = RunpodTarget(max_hours=3, gpu_types=("A", "auto"), max_cost_usd=1.5, network_volume_id="v", min_vram_gb=9)
    made = wants_of(msgspec.to_builtins(target), run=RUN, need_gb=4, args="a", env={"A": "b"})
    assert (made.max_hours, made.gpu_types, made.max_cost_usd, made.image) == (3, ("A", "auto"), 1.5, target.image)
    assert (made.run, made.need_gb, made.args, made.env, made.min_vram_gb) == (RUN, 4, "a", {"A": "b"}, 9)


def test_every_option_that_the_body_needs_is_one_of_the_target() -> None:
    ours = set(Wants.__dataclass_fields__) - {"run", "need_gb", "args", "env"}
    theirs = {field.name for field in msgspec.structs.fields(RunpodTarget)}
    assert ours <= theirs
    defaults = {field.name: field.default for field in msgspec.structs.fields(RunpodTarget)}
    for name in ours - {"max_hours", "image"}:
        assert Wants.__dataclass_fields__[name].default == defaults[name], name


@pytest.mark.parametrize(
    ("more", "price", "seconds"),
    [
        ({}, 0.5, 7200),
        ({"max_cost_usd": 0.5}, 0.46, 3913),
        ({"max_cost_usd": 0.5}, 0.44, 4090),
        ({"max_cost_usd": 50}, 0.44, 7200),
        ({"max_cost_usd": 0.5, "max_price_per_hour": 0.6}, None, 3000),
        ({"max_cost_usd": 0.5}, None, 7200),
    ],
)
def test_how_long_it_may_live(more: dict[str, Any], price: float | None, seconds: int) -> None:
    assert limit_of(wants(**more), price)[0] == seconds


def test_the_body_says_only_what_is_set() -> None:
    plain = msgspec.to_builtins(body_of(wants(), "n", "G", 0.5))
    assert plain == {
        "name": "n",
        "image": IMAGE,
        "gpu": {"id": "G", "count": 1},
        "cloud": "SECURE",
        "disk": 50,
        "ports": ("22/tcp",),
        "env": {
            "STEPCTL_RUN": RUN,
            "STEPCTL_MAX_SECONDS": "7200",
            "STEPCTL_MAX_REASON": "deadline",
            "STEPCTL_SAVE_AHEAD": "300",
        },
    }
    full = body_of(
        wants(gpu_count=2, data_center_ids=("X",), network_volume_id="v", min_cuda_version="12.8", args="a"),
        "n",
        "G",
        1,
    )
    assert msgspec.json.decode(msgspec.json.encode(full)) == {
        **plain,
        "ports": ["22/tcp"],
        "gpu": {"id": "G", "count": 2, "minCudaVersion": "12.8"},
        "dataCenterIds": ["X"],
        "mounts": {"network": [{"volumeId": "v", "path": "/workspace"}]},
        "args": "a",
    }


def test_what_is_sent_is_strict() -> None:
    with pytest.raises(TypeError):
        CreatePod(name="n", image="i", gpus="?")  # type: ignore[call-arg]


def test_names() -> None:
    assert run_of(pod_name(RUN, 12)) == (RUN, 12)
    for name in ("stepctl-", "stepctl-1", f"stepctl-{RUN}-x", f"other-{RUN}-1", f"stepctl-{RUN}-²", "my-pod"):
        assert run_of(name) is None
    record = PodRecord(run="r", target="t")
    assert next_name(record) == "stepctl-r-1"
    for number in (1, 4, 2):
        attempt = Attempt(
            name=pod_name("r", number),
            state="gone",
            asked_at="",
            gpu_type=None,
            gpu_count=1,
            listed_price=None,
            cloud="SECURE",
        )
        record.attempts.append(attempt)
    assert next_name(record) == "stepctl-r-5"


@pytest.mark.parametrize("cost", [0.89, "0.89", " 0.89 "])
def test_prices_compare_the_same_as_number_and_text(cost: Any) -> None:
    assert read_pod({"id": "a", "cost": cost}).price == 0.89


@pytest.mark.parametrize("cost", [None, 0, 0.0, "0", "", "free", "nan", "inf", -1])
def test_what_is_no_price_is_none(cost: Any) -> None:
    assert usd(cost) is None
    assert read_pod({"id": "a", "cost": cost}).price is None
    assert read_pod({"id": "a"}).price is None


def test_the_address_is_that_of_port_22() -> None:
    inner = {"private": 19123, "public": 60000, "type": "http", "ip": "100.65.0.2"}
    ssh = {"private": 22, "public": 34446, "type": "tcp", "ip": "192.0.2.3"}
    pod = read_pod({"id": "a", "runtime": {"ports": [inner, ssh]}, "ssh": {"direct": None, "proxy": {"host": "x"}}})
    assert pod.address is not None
    assert (pod.address.host, pod.address.port) == ("192.0.2.3", 34446)
    for ports in ([inner], [{**ssh, "public": None}], [{**ssh, "type": "udp"}], [{**ssh, "ip": None}], None):
        assert read_pod({"id": "a", "runtime": {"ports": ports}}).address is None
    direct = {"host": "192.0.2.9", "port": 1, "username": "root", "command": "ssh"}
    found = read_pod({"id": "a", "ssh": {"direct": direct, "proxy": None}, "runtime": {"ports": [ssh]}}).address
    assert found is not None
    assert found.host == "192.0.2.9"


def test_times() -> None:
    assert moment("2026-06-01T12:00:00Z") == datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert moment("2026-06-01T12:00:00") == datetime(2026, 6, 1, 12, tzinfo=UTC)
    assert moment("soon") is moment(None) is moment("") is None
