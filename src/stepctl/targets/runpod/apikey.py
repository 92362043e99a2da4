"""Where the account's key and the API's address come from."""

from __future__ import annotations

import ipaddress
import shlex
import subprocess
from collections.abc import Mapping
from urllib.parse import urlsplit

from stepctl.base.errors import UsageError

KEY = "RUNPOD_API_KEY"
URL = "RUNPOD_API_URL"
DEFAULT_URL = "https://api.runpod.io/v2"
COMMAND_SECONDS = 30.0


def api_key(command: str | None, env: Mapping[str, str], *, seconds: float = COMMAND_SECONDS) -> str:
    """The key: ``RUNPOD_API_KEY``, else what ``api_key_command`` prints.

    Raises:
        UsageError: neither gives one. What the command printed is not shown.
    """
    if key := env.get(KEY, "").strip():
        return key
    if not command or not command.strip():
        raise UsageError(
            f"no Runpod API key: {KEY} is not set, and the target has no api_key_command",
            next=f"export {KEY}=..., or set api_key_command to a command that prints the key",
            code="no_api_key",
        )
    return _run(command, env, seconds)


def _run(command: str, env: Mapping[str, str], seconds: float) -> str:
    def failed(why: str) -> UsageError:
        return UsageError(
            f"the target's api_key_command gave no key: {why}",
            next=f"run it by hand, mend it in stepctl.toml, or set {KEY}",
            code="no_api_key",
        )

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise failed(f"it cannot be split into words: {error}") from None
    try:
        # Its stderr goes to the terminal: it may ask for something, or say what is wrong.
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=seconds, check=False, env=dict(env), text=True)
    except subprocess.TimeoutExpired:
        raise failed(f"{words[0]} did not end in {seconds:g} seconds") from None
    except OSError as error:
        raise failed(f"{words[0]} cannot be run: {error.strerror}") from None
    except UnicodeDecodeError:
        raise failed(f"{words[0]} printed what is no text") from None
    if done.returncode:
        raise failed(f"{words[0]} ended with code {done.returncode}")
    key = done.stdout.strip()
    if not key:
        raise failed(f"{words[0]} printed nothing")
    if any(char.isspace() for char in key):
        raise failed(f"{words[0]} printed more than a key")
    return key


def api_url(option: str | None, env: Mapping[str, str]) -> str:
    """The API's address: the target's ``api_url``, else ``RUNPOD_API_URL``, else the provider's.

    Raises:
        UsageError: it is none, or would send the key over plain http to a public address.
    """
    url = (option or env.get(URL, "").strip() or DEFAULT_URL).rstrip("/")
    where = "api_url" if option else URL
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise UsageError(f"{where} {url!r} is no address of an API", next=f"use one such as {DEFAULT_URL}")
    if parts.scheme == "http" and not _private(host):
        raise UsageError(
            f"{where} {url!r} would send your API key in clear text",
            next="use https; http is for an emulator at a loopback or private address",
        )
    return url


def _private(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_private
