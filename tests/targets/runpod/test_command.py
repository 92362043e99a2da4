"""What a pod is told at its create."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stepctl.targets.runpod
from stepctl.base.errors import UsageError
from stepctl.targets.runpod.command import MAX_ENV, PodPlan, pod_env, start_command

SCRIPTS = Path(stepctl.targets.runpod.__file__).parent
ACCOUNT_KEY = "rpa_" + "ACCOUNT0" * 5
PLAN = PodPlan(
    run="20261130T041502917-1f9c0a",
    mark="ab" * 32,
    public_key="ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFFF stepctl",
    host_key_secret="stepctl_1f9c0a",
    max_seconds=7200,
    boot_grace=1800,
    lease=900,
    stall=1800,
    grace=3600,
    save_ahead=300,
    tick=30,
    api_url="https://api.runpod.io/v2/",
)


def test_the_environment_is_the_contract() -> None:
    assert pod_env(PLAN) == {
        "PUBLIC_KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFFF stepctl",
        "STEPCTL_RUN": "20261130T041502917-1f9c0a",
        "STEPCTL_MARK": "ab" * 32,
        "STEPCTL_MAX_SECONDS": "7200",
        "STEPCTL_BOOT_GRACE": "1800",
        "STEPCTL_LEASE": "900",
        "STEPCTL_STALL": "1800",
        "STEPCTL_GRACE": "3600",
        "STEPCTL_SAVE_AHEAD": "300",
        "STEPCTL_TICK": "30",
        "STEPCTL_MAX_REASON": "deadline",
        "STEPCTL_API": "https://api.runpod.io/v2",
        "STEPCTL_HOST_KEY": "{{ RUNPOD_SECRET_stepctl_1f9c0a }}",
    }


def test_without_a_secret_or_a_key_nothing_stands_for_them() -> None:
    env = pod_env(replace(PLAN, host_key_secret=None, mark="", max_reason="cost"))
    assert "STEPCTL_HOST_KEY" not in env
    assert env["STEPCTL_MARK"] == ""
    assert env["STEPCTL_MAX_REASON"] == "cost"


def test_variables_of_the_target_are_added() -> None:
    assert pod_env(replace(PLAN, env={"OMP_NUM_THREADS": "4", "EMPTY": ""}))["OMP_NUM_THREADS"] == "4"


def test_fifty_names_are_the_most() -> None:
    most = {f"A{number}": "" for number in range(MAX_ENV - len(pod_env(PLAN)))}
    assert len(pod_env(replace(PLAN, env=most))) == 50
    with pytest.raises(UsageError, match="takes 50 variables, and these would be 51") as refused:
        pod_env(replace(PLAN, env={**most, "ONE_MORE": ""}))
    assert f"at most {len(most)} in env" in refused.value.next


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUNPOD_API_KEY", "x"),
        ("HF_TOKEN", "x"),
        ("HUGGING_FACE_HUB_TOKEN", "{{ RUNPOD_SECRET_hf }}"),
        ("INNOCENT", ACCOUNT_KEY),
        ("INNOCENT", "https://user:hf_abcdefghijklmnopqrstuvwxyz@example.org"),
        ("INNOCENT", "key=rpa_ABCDEFGHIJKLMNOPQRST,"),
        ("INNOCENT", "prefix my own secret of the account"),
    ],
)
def test_no_secret_gets_in(name: str, value: str) -> None:
    secrets = (ACCOUNT_KEY, "", "my own secret of the account")
    with pytest.raises(UsageError, match=f"the variable {name} of the target holds a secret") as refused:
        pod_env(replace(PLAN, env={name: value}), secrets)
    assert refused.value.code == "secret_in_env"
    assert value not in str(refused.value) + refused.value.next


def test_what_only_looks_a_little_like_a_secret_gets_in() -> None:
    env = {"HF_HOME": "/workspace/hf_cache_of_everybody", "A": "rpa_short", "B": "my_hf_abcdefghijklmnopqrstuvwxyz"}
    assert pod_env(replace(PLAN, env=env), ("",)).items() >= env.items()


@pytest.mark.parametrize("name", ["PUBLIC_KEY", "STEPCTL_LEASE", "STEPCTL_NEW", "RUNPOD_POD_ID"])
def test_what_stepctl_sets_cannot_be_set(name: str) -> None:
    with pytest.raises(UsageError, match="sets itself"):
        pod_env(replace(PLAN, env={name: "1"}))


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä"])
def test_names_that_no_shell_takes_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a variable"):
        pod_env(replace(PLAN, env={name: "1"}))


def test_a_life_that_is_too_short_to_save_anything_is_refused() -> None:
    assert pod_env(replace(PLAN, max_seconds=301))
    with pytest.raises(UsageError, match="a pod that may live 300 s cannot be asked to save 300 s before its end"):
        pod_env(replace(PLAN, max_seconds=300))


@pytest.mark.parametrize(
    "change",
    [
        {"lease": 0},
        {"tick": 1.5},
        {"stall": True},
        {"grace": 10**9},
        {"max_reason": "boredom"},
        {"mark": "abc"},
        {"public_key": ""},
        {"public_key": "null"},
        {"public_key": "ssh-ed25519 AAAA\nssh-ed25519 BBBB"},
        {"host_key_secret": "}} {{"},
        {"api_url": "api.runpod.io/v2"},
        {"api_url": "https://api.runpod.io/v2 x"},
    ],
)
def test_a_plan_that_cannot_hold_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"pod|secret|URL"):
        pod_env(replace(PLAN, **change))


def test_the_command_is_an_entrypoint_with_both_scripts_in_it() -> None:
    found = json.loads(start_command())
    assert found["cmd"] == []
    sh, option, text = found["entrypoint"]
    assert (sh, option) == ("sh", "-c")
    assert "@WATCHDOG@" not in text
    for name in ("start.sh", "watchdog.sh"):
        lines = [line for line in (SCRIPTS / name).read_text().splitlines() if line.strip()]
        code = [line for line in lines if not line.lstrip().startswith("#") and "@WATCHDOG@" not in line]
        assert "\n".join(code[:20]) in text
        assert "\n".join(code[-20:]) in text


def test_the_command_fits_into_one_argument_and_holds_nothing_that_the_provider_replaces() -> None:
    # Linux takes 128 KiB in one argument.
    assert len(json.loads(start_command())["entrypoint"][2].encode()) < 60_000
    assert "{{" not in start_command()
    assert start_command().isascii()
