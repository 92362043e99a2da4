"""What a person reads when the Hub refuses or is not there: each way its own words, at every command, no token."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cli.hub_machines import machine, shared_model
from tests.doubles.hub import Fault, Hub
from tests.doubles.project import Project, rows

COMMANDS = {
    "train": ["train", "b.jsonl"],
    "status": ["status"],
    "verify": ["lineage", "verify"],
    "log": ["lineage", "log"],
}


@dataclass
class Case:
    """``codes`` and ``says`` hold for every command unless ``train`` says otherwise."""

    code: str
    says: str
    next: str
    env: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    train: str = ""


HASTY = {"STEPCTL_HUB_TIMEOUT": "0.2", "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1"}
LIMIT = Fault("/tree", status=429, retry_after=3600)
HANG = Fault("/tree", hang=True)
CASES = {
    "a wrong token": Case("hub_token", "refuses the token (401)", "HF_TOKEN", {"HF_TOKEN": Hub.wrong}),
    "no token": Case("hub_token", "HF_TOKEN is not set", "HF_TOKEN", {"HF_TOKEN": ""}),
    "another's token": Case(
        "hub_no_bucket", "there is no bucket", "check the name", {"HF_TOKEN": Hub.other}, train="hub_permission"
    ),
    "HF_HUB_OFFLINE": Case("hub_offline", "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE", {"HF_HUB_OFFLINE": "1"}),
    "a rate limit": Case(
        "hub_rate_limit",
        "too many requests (429)",
        "in 3600 seconds",
        {},
        (Fault("/tree", status=429, retry_after=3600),),
    ),
    "a broken Hub": Case("hub_server", "itself has failed (503)", "later", HASTY, (Fault("/tree", status=503),)),
    "a hung Hub": Case(
        "hub_timeout", "did not answer within 0.2", "STEPCTL_HUB_TIMEOUT", HASTY, (Fault("/tree", hang=True),)
    ),
}


@pytest.fixture(scope="module")
def project(running_hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A lineage of one step."""
    base = tmp_path_factory.mktemp("errors")
    running_hub.faults()
    project = machine(running_hub, f"hf://buckets/u/{base.name}", base / "one", model=shared_model(base))
    project.train(project.trace("a.jsonl", rows(4)))
    project.trace("b.jsonl", rows(4, 10))
    return project


def _all_at_once(project: Project, env: dict[str, str]) -> dict[str, tuple[int, str, str]]:
    started = {
        name: subprocess.Popen(
            project.command(*arguments, "--json"),
            cwd=project.path,
            env={**project.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, arguments in COMMANDS.items()
    }
    ended = {name: process.communicate(timeout=100) for name, process in started.items()}
    return {name: (started[name].returncode, *texts) for name, texts in ended.items()}


def _no_token_anywhere(project: Project, *texts: str) -> None:
    tokens = (Hub.write, Hub.read, Hub.other, Hub.wrong)
    for text in texts:
        assert not any(token in text for token in tokens)
    for path in project.everything():
        assert not any(token.encode() in path.read_bytes() for token in tokens), path


@pytest.mark.parametrize("name", CASES)
def test_each_way_to_fail(plain_hub: Hub, project: Project, name: str) -> None:
    case = CASES[name]
    plain_hub.faults(*case.faults)
    ended = _all_at_once(project, case.env)
    plain_hub.faults()
    for command, (code, out, err) in ended.items():
        error = json.loads(out)["error"]
        expected = case.train if command == "train" and case.train else case.code
        assert (command, code, error["code"]) == (command, 1, expected), err
        assert "Traceback" not in err
        assert error["message"] in err
        if expected == case.code:
            assert case.says in error["message"]
            assert case.next in error["next"]
        assert error["safe"]
        _no_token_anywhere(project, out, err)
    assert project.status()["step"] == 1


def test_nobody_listens(plain_hub: Hub, project: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{taken.getsockname()[1]}", **HASTY}
        for out, err in ((out, err) for _, out, err in _all_at_once(project, env).values()):
            error = json.loads(out)["error"]
            assert error["code"] == "hub_unreachable"
            assert "Connection refused" in error["message"]
            assert "check the connection" in error["next"]
            assert "Traceback" not in err


def test_a_token_that_only_reads(plain_hub: Hub, project: Project) -> None:
    """Reading works; training is refused before anything is spent."""
    ended = _all_at_once(project, {"HF_TOKEN": Hub.read})
    assert [code for code, _, _ in ended.values()] == [1, 0, 0, 0]
    error = json.loads(ended["train"][1])["error"]
    assert error["code"] == "hub_permission"
    assert "write permission for the buckets of u" in error["next"]
    assert len(project.runs()) == 1


@pytest.mark.parametrize(("status", "match"), [(413, "POST .*/batch"), (507, "POST /cas-.*/xorbs")])
def test_a_full_quota_keeps_the_work_here(
    plain_hub: Hub, tmp_path: Path, project: Project, status: int, match: str
) -> None:
    other = machine(plain_hub, f"hf://buckets/u/{tmp_path.name}", tmp_path / "one", model=project.model)
    plain_hub.faults(Fault(match, status=status))
    failed = other.train(other.trace("a.jsonl", rows(4)), code=9)
    plain_hub.faults()
    assert "its owner's storage is full" in failed["error"]["message"]
    (run,) = other.runs()
    assert (run / "out").is_dir()
    _no_token_anywhere(other)
    assert other.run("train", "attach", failed["run"]).returncode == 0
    assert other.status()["step"] == 1


def test_the_doctor_says_it_too(plain_hub: Hub, project: Project) -> None:
    done = project.run("doctor", "--json", env={"HF_TOKEN": Hub.read})
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["bucket"]["level"] == "bad"
    assert "no permission" in checks["bucket"]["text"]
    none = project.run("doctor", "--json", "--bucket", "hf://buckets/u/not-there")
    checks = {check["name"]: check for check in json.loads(none.stdout)["checks"]}
    assert checks["bucket"]["level"] == "note"
    assert plain_hub.requests("POST") == []
