"""A bucket on the Hub and a machine that is not to commit: the client does, and no token leaves this computer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.hub_machines import trained
from tests.doubles.hub import Hub
from tests.doubles.project import kill, rows, until
from tests.doubles.rented import Cloud, Rented
from tests.doubles.runpod import Fault

pytestmark = pytest.mark.pods


@pytest.fixture
def project(cloud: Cloud, plain_hub: Hub, tmp_path: Path) -> Iterator[Rented]:
    """The Hub is within reach of the pods, who have no use for it."""
    url = cloud.sandbox.expose(plain_hub.url)
    project = Rented(tmp_path, cloud, toml=f'bucket = "{bucket(tmp_path)}"')
    project.set(env={"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"})
    project.env |= plain_hub.env(tmp_path / "home/hf") | {"HF_ENDPOINT": url, "HF_XET_CLIENT_RETRY_BASE_DELAY": "20ms"}
    yield project


def bucket(folder: Path) -> str:
    return f"hf://buckets/u/{folder.name}/pre"


def in_pods(secret: str) -> tuple[int, int]:
    """Processes in networks of their own, and those of them that have ``secret`` anywhere in their memory."""
    ours, seen, having = Path("/proc/self/ns/net").readlink(), 0, 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "ns/net").readlink() != ours:
                seen += 1
                having += any(secret.encode() in part for part in memory(path))
    return seen, having


def memory(process: Path) -> Iterator[bytes]:
    """What a process can write to: its variables, arguments and environment."""
    with (process / "mem").open("rb", buffering=0) as file:
        for line in (process / "maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(each, 16) for each in span.split("-"))
                with contextlib.suppress(OSError):
                    file.seek(begin)
                    yield file.read(end - begin)


@pytest.mark.parametrize("options", [{"cloud": "COMMUNITY"}, {"cloud": "SECURE", "commit": "client"}])
def test_the_client_commits_and_keeps_its_token(project: Rented, plain_hub: Hub, options: dict[str, str]) -> None:
    project.set(**options)
    first = project.train(project.trace("a.jsonl", rows(8)), "--key", "a")
    assert (first["state"], first["global_step"], project.record()["staged"]) == ("done", 2, True)
    project.faults(pause_at="step:3")
    process = project.start("train", project.trace("b.jsonl", rows(5, 20)))
    until(lambda: len(project.runs()) == 2)
    project.wait_for("step:3")
    seen, having = in_pods(Hub.write)
    assert seen > 0 and having == 0
    project.go()
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert trained(plain_hub, project, bucket(project.path)) == 13
    again = project.train("a.jsonl", "--key", "a", env={"RUNPOD_API_KEY": ""})
    assert again["replayed"]
    project.clean("client", "client")


def test_a_secure_pod_commits_itself_with_the_token(project: Rented, plain_hub: Hub) -> None:
    """The other side of the same: the search above finds a token that is there."""
    project.faults(pause_at="step:1")
    process = project.start("train", project.trace("a.jsonl", rows(5)))
    project.wait_for("step:1")
    assert in_pods(Hub.write)[1] > 0
    project.go()
    process.communicate(timeout=60)
    assert (process.returncode, project.record()["staged"]) == (0, False)
    assert trained(plain_hub, project, bucket(project.path)) == 5
    project.clean("client")


def test_a_pod_that_committed_ends_itself_at_once_and_the_receipt_says_so(project: Rented, plain_hub: Hub) -> None:
    """Its client knows the result, and dies before it ends the pod."""
    project.sandbox.fault(Fault(r"^GET /v2/pods/\w+/logs", hold=True))
    process = project.start("train", project.trace("a.jsonl", rows(5)))
    project.sandbox.wait_held()
    kill(process)
    project.sandbox.release()
    project.sandbox.wait_event("ended")
    report = project.attach()
    assert (report["state"], report["rows_done"], report["pods"][0]["ended_by"]) == ("done", 5, "pod")
    assert trained(plain_hub, project, bucket(project.path)) == 5
    project.clean("pod")
