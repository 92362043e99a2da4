"""Where the key and the address come from."""

from __future__ import annotations

import os
import sys

import pytest

from stepctl.base.errors import Exit, UsageError
from stepctl.targets.runpod.apikey import DEFAULT_URL, api_key, api_url

ENV = {"PATH": os.environ["PATH"]}


def printing(code: str) -> str:
    return f"{sys.executable} -c '{code}'"


def test_the_variable_comes_first() -> None:
    assert api_key("false", {"RUNPOD_API_KEY": " rpa_1\n"}) == "rpa_1"


def test_the_command_is_split_run_and_stripped() -> None:
    assert api_key(printing('print("  rpa_2  "); print()'), ENV) == "rpa_2"
    assert (
        api_key(printing('import os; print(os.environ["X"])'), ENV | {"X": "rpa_3", "RUNPOD_API_KEY": " "}) == "rpa_3"
    )


def test_no_shell_reads_it() -> None:
    assert api_key("echo $HOME;ls", ENV | {"HOME": "/home/me"}) == "$HOME;ls"


@pytest.mark.parametrize("command", [None, "", "  "])
def test_missing_names_both_ways(command: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        api_key(command, {})
    assert caught.value.exit_code == Exit.USAGE
    assert "RUNPOD_API_KEY" in caught.value.message
    assert "api_key_command" in caught.value.message


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (printing('print("secret"); raise SystemExit(3)'), "ended with code 3"),
        (printing("pass"), "printed nothing"),
        (printing('print("secret"); print("and more")'), "printed more than a key"),
        (printing(r"import sys; sys.stdout.buffer.write(bytes([255, 254]))"), "no text"),
        ("/no/such/program", "cannot be run"),
        ("echo 'half", "cannot be split"),
    ],
)
def test_commands_that_give_no_key(command: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        api_key(command, ENV)
    assert "secret" not in caught.value.message


def test_a_command_that_hangs() -> None:
    with pytest.raises(UsageError, match=r"did not end in 0\.2 seconds"):
        api_key("sleep 30", ENV, seconds=0.2)


def test_the_address() -> None:
    assert api_url(None, {}) == DEFAULT_URL == "https://api.runpod.io/v2"
    assert api_url(None, {"RUNPOD_API_URL": "https://other/v2/"}) == "https://other/v2"
    assert api_url("https://mine/v2", {"RUNPOD_API_URL": "https://other/v2"}) == "https://mine/v2"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v2", "http://[::1]:1/v2", "http://localhost/v2", "http://10.231.4.1:9/v2"]
)
def test_plain_http_within(url: str) -> None:
    assert api_url(url, {}) == url


@pytest.mark.parametrize("url", ["http://api.runpod.io/v2", "http://8.8.8.8/v2", "http://localhost.example/v2"])
def test_plain_http_outside_would_show_the_key(url: str) -> None:
    with pytest.raises(UsageError, match="clear text"):
        api_url(None, {"RUNPOD_API_URL": url})


@pytest.mark.parametrize(
    "url",
    [
        "api.runpod.io",
        "ftp://x/v2",
        "https://",
        "https://me:pw@x/v2",
        "https://x/v2?a=b",
        "http://[::1/v2",
        "https://x:99999/v2",
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="no address of an API"):
        api_url(url, {})
