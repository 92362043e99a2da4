"""The keys of a run's pods: made once, never left, and the host's known before the first connection."""

from __future__ import annotations

import base64
import stat

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import RUN, Desk

from stepctl.targets.runpod.errors import BadKey
from stepctl.targets.runpod.keys import (
    close_secret,
    forget_keys,
    host_key_from_log,
    pin,
    prepare_keys,
    read_host_key,
    secret_name,
)

SECRET = "stepctl_20261130T041502917_1f9c0a"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGSIKQQdpfHn8kgBzHtLsTgMJUVeWPxtTb0XkSBEEKNX"


def test_both_pairs(desk: Desk) -> None:
    keys = prepare_keys(desk.api, desk.file)
    assert stat.S_IMODE(desk.file.client_key.stat().st_mode) == 0o600
    client = load_ssh_private_key(desk.file.client_key.read_bytes(), None)
    assert client.public_key() == load_ssh_public_key(keys.client.encode())
    assert keys.host == f"{{{{ RUNPOD_SECRET_{SECRET} }}}}"
    record = desk.file.load()
    assert (record.secret, record.secret_open) == (SECRET, True) == (secret_name(RUN), True)
    [value] = desk.sandbox.secrets().values()
    assert value.isascii()
    assert "\n" not in value
    host = load_ssh_private_key(base64.b64decode(value), None)
    assert host.public_key() == load_ssh_public_key((record.host_key or "").encode())
    assert value not in desk.file.path.read_text()


def test_they_are_made_once(desk: Desk) -> None:
    first = prepare_keys(desk.api, desk.file)
    desk.make()
    record = desk.file.load()
    assert prepare_keys(desk.api, desk.file) == first
    assert desk.file.load() == record
    assert len(desk.sandbox.calls("POST /v2/account/secrets")) == 1


def test_the_secret_is_recorded_before_it_is_made(desk: Desk) -> None:
    desk.sandbox.fault(Fault("POST /v2/account/secrets", status=401))
    with pytest.raises(BadKey):
        prepare_keys(desk.api, desk.file)
    assert desk.file.load().secret_open


def test_a_secret_that_an_earlier_try_left_is_replaced(desk: Desk) -> None:
    desk.api.add_secret(SECRET, "old")
    keys = prepare_keys(desk.api, desk.file)
    assert keys.host
    assert list(desk.sandbox.secrets()) == [SECRET]
    assert desk.sandbox.secrets()[SECRET] != "old"


@pytest.mark.parametrize("status", [403, 404, 405])
def test_where_secrets_are_not_allowed_the_pod_makes_its_own(desk: Desk, status: int) -> None:
    desk.sandbox.fault(Fault("/account/secrets", status=status, times=0))
    keys = prepare_keys(desk.api, desk.file)
    assert (keys.host, desk.file.load().secret_open, desk.file.load().host_key) == (None, False, None)
    assert keys.client.startswith("ssh-ed25519 ")
    calls = len(desk.sandbox.calls())
    forget_keys(desk.api, desk.file)
    assert len(desk.sandbox.calls()) == calls


def test_a_secret_whose_fate_is_not_known_is_not_used_and_still_cleaned_up(desk: Desk) -> None:
    desk.sandbox.fault(Fault("POST /v2/account/secrets", drop=True, when="after"))
    keys = prepare_keys(desk.api, desk.file)
    assert (keys.host, desk.file.load().secret_open) == (None, True)
    assert list(desk.sandbox.secrets()) == [SECRET]
    forget_keys(desk.api, desk.file)
    assert desk.sandbox.secrets() == {}


def test_the_secret_is_closed_after_boot(desk: Desk) -> None:
    prepare_keys(desk.api, desk.file)
    assert close_secret(desk.api, desk.file)
    assert (desk.sandbox.secrets(), desk.file.load().secret_open) == ({}, False)
    assert desk.file.load().host_key
    assert desk.file.client_key.exists()
    assert close_secret(desk.api, desk.file)


def test_a_secret_that_cannot_be_deleted_now_stays_noted(desk: Desk) -> None:
    prepare_keys(desk.api, desk.file)
    number = desk.sandbox.fault(Fault("DELETE /v2/account/secrets", status=500, times=0))
    assert number
    assert not close_secret(desk.api, desk.file)
    assert desk.file.load().secret_open
    desk.sandbox.clear()
    forget_keys(desk.api, desk.file)
    assert desk.sandbox.secrets() == {}


def test_keys_go_with_the_pod(desk: Desk) -> None:
    prepare_keys(desk.api, desk.file)
    desk.make()
    assert pin(desk.file, "192.0.2.7", 10341)
    desk.end()
    assert not desk.file.client_key.exists()
    assert not desk.file.known_hosts.exists()


def test_pinning(desk: Desk) -> None:
    assert not pin(desk.file, "192.0.2.7", 22)
    prepare_keys(desk.api, desk.file)
    key = desk.file.load().host_key
    pin(desk.file, "192.0.2.7", 10341)
    assert desk.file.known_hosts.read_text() == f"[192.0.2.7]:10341 {key}\n"
    pin(desk.file, "192.0.2.7", 22)
    assert desk.file.known_hosts.read_text() == f"192.0.2.7 {key}\n"


def test_the_host_key_of_the_log(desk: Desk) -> None:
    pod = desk.make().pod or ""
    assert host_key_from_log(desk.api, pod) is None
    for line in ("stepctl-host-key: ssh-rsa AAAA", f"stepctl-host-key: {KEY} root@pod", "something else"):
        desk.sandbox.add_log(pod, line)
    desk.sandbox.add_log(pod, "stepctl-host-key: ssh-ed25519 AAAA", source="system")
    assert host_key_from_log(desk.api, pod) == KEY


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f" {KEY}", KEY),
        (f"{KEY} comment here", KEY),
        ("ssh-ed25519", None),
        ("ssh-ed25519 AAAA", None),
        ("ssh-ed25519 !!!!", None),
        (KEY.replace("ssh-ed25519 ", "ssh-rsa "), None),
        (KEY[:-4], None),
        ("", None),
    ],
)
def test_reading_a_host_key(text: str, key: str | None) -> None:
    assert read_host_key(text) == key
