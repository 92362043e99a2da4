"""The keys of a run's pods: one pair that opens them, and one that they prove themselves with.

The host's private key travels as a secret of the account, so that the pod can be told from any other from its first
byte on. Where the key of the API may not write secrets, the pod makes its own and prints it; its log is read over the
authenticated API.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stepctl.base.files import write_atomic
from stepctl.runs.pods import PodFile, PodRecord
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.command import HOST_KEY_LINE
from stepctl.targets.runpod.errors import BadKey, Rejected, RunpodError

SILENCE_SECONDS = 1.0
_TYPE = "ssh-ed25519"
SECRET_PREFIX = "stepctl_"  # noqa: S105


@dataclass(frozen=True)
class PodKeys:
    """What the pod is given: ``client`` for PUBLIC_KEY; ``secret`` is the name of the account's secret that holds the
    host's private key (None: the pod makes its own)."""

    client: str
    secret: str | None

    @property
    def host(self) -> str | None:
        """What the provider replaces by the secret."""
        return f"{{{{ RUNPOD_SECRET_{self.secret} }}}}" if self.secret else None


def secret_name(run: str) -> str:
    """The name of a run's secret."""
    return SECRET_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", run)


def prepare_keys(api: Api, file: PodFile) -> PodKeys:
    """Make the pairs of a run: a later call finds them while a pod that was given them may still come. Before a create.

    Raises:
        BadKey: the API key is not accepted (401).
    """
    client = client_key(file)
    record = file.load()
    given = record.secret_open if record.secret else record.host_key is None
    if not record.open or not given:
        # Nobody who may still come was given a host key, or the secret with it is gone already.
        record = _new_host_key(api, file, record)
    return PodKeys(client, record.secret if record.host_key else None)


def client_key(file: PodFile) -> str:
    """The public half of the pair that opens the run's pods; it is made when it is not there."""
    if not file.client_key.exists():
        private = Ed25519PrivateKey.generate()
        write_atomic(file.client_key, _private_text(private), mode=0o600)
    found = serialization.load_ssh_private_key(file.client_key.read_bytes(), None)
    assert isinstance(found, Ed25519PrivateKey)
    return _public_text(found)


def _new_host_key(api: Api, file: PodFile, record: PodRecord) -> PodRecord:
    private = Ed25519PrivateKey.generate()
    name = secret_name(record.run)
    left = record.secret_open
    # Before the secret is made: a secret of which nobody knows would stay for good.
    file.update(lambda each: _set(each, name, True, _public_text(private)))
    value = base64.b64encode(_private_text(private)).decode()
    try:
        if left:
            api.delete_secret(name)
        try:
            api.add_secret(name, value)
        except Rejected as error:
            if error.status != 409:
                raise
            api.delete_secret(name)
            api.add_secret(name, value)
    except (BadKey, Rejected) as error:
        if error.status == 401:
            raise
        # This key, or this server, knows no secrets.
        return file.update(lambda each: _set(each, None, False, None))
    except RunpodError:
        # It may have been made, with this value or without: it is not used, and cleaned up with the run.
        return file.update(lambda each: _set(each, name, True, None))
    return file.load()


def _set(record: PodRecord, secret: str | None, is_open: bool, host_key: str | None) -> None:
    record.secret, record.secret_open, record.host_key = secret, is_open, host_key


def close_secret(api: Api, file: PodFile) -> bool:
    """Delete the run's secret, if it has one; False when that did not succeed, and it stays noted."""
    record = file.load()
    if not record.secret_open or record.secret is None:
        return True
    try:
        api.delete_secret(record.secret)
    except RunpodError:
        return False
    file.update(lambda each: setattr(each, "secret_open", False))
    return True


def forget_keys(api: Api, file: PodFile) -> None:
    """Delete the secret and the keys of a run whose pods are gone."""
    close_secret(api, file)
    file.client_key.unlink(missing_ok=True)
    file.known_hosts.unlink(missing_ok=True)


def pin(file: PodFile, host: str, port: int) -> bool:
    """Write the pinned host key for that address into ``known_hosts``; False when no key is known yet."""
    key = file.load().host_key
    if key is None:
        return False
    name = host if port == 22 else f"[{host}]:{port}"
    line = f"{name} {key}\n".encode()
    if not file.known_hosts.exists() or file.known_hosts.read_bytes() != line:
        write_atomic(file.known_hosts, line, mode=0o600)
    return True


def host_key_from_log(api: Api, pod_id: str) -> str | None:
    """The host key that a pod printed when it made its own, from its container's log; None when it is not there yet."""
    found = None
    for line in api.logs(pod_id, "container", 1000, silence=SILENCE_SECONDS):
        _, mark, rest = line.line.partition(HOST_KEY_LINE)
        if mark and (key := read_host_key(rest)):
            found = key
    return found


def read_host_key(text: str) -> str | None:
    """``ssh-ed25519 AAAA...`` at the start of ``text``; None when it is no such key."""
    words = text.split()
    if len(words) < 2 or words[0] != _TYPE:
        return None
    try:
        data = base64.b64decode(words[1], validate=True)
    except (binascii.Error, ValueError):
        return None
    prefix = b"\0\0\0\x0b" + _TYPE.encode() + b"\0\0\0\x20"
    return f"{_TYPE} {words[1]}" if data.startswith(prefix) and len(data) == len(prefix) + 32 else None


def _private_text(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def _public_text(key: Ed25519PrivateKey) -> str:
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()
