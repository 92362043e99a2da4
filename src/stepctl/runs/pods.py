"""``pod.json``: every pod that a run asked for, what it cost, who ended it, and when that was confirmed: the receipt.

Written before each act on the provider, with enough in it to find what the act made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from stepctl.base.errors import StepctlError
from stepctl.base.files import locked, write_atomic

POD_VERSION = 1

OPEN = ("intended", "unresolved", "made", "ready", "working", "ending", "kept")
"""States of an attempt that may cost money, or come to."""

STATES = (*OPEN, "refused", "handed", "gone")


class Attempt(Struct, kw_only=True):
    """One pod, from the intent to its confirmed end. Times are RFC 3339 in UTC; prices USD per hour for the whole pod.

    ``state`` goes from ``intended`` (written before the create) to ``refused`` (a definite no: nothing was made),
    ``unresolved`` (the answer was lost, and the lists do not tell yet) or ``made`` (``pod`` is its id); then ``ready``
    (SSH let us in), ``working`` (the job was started), ``ending`` (its end was asked for), ``kept`` (left for the next
    call, until ``kept_until``), ``handed`` (that call has it in its own record), and ``gone`` (confirmed by the
    provider).

    ``ended_by`` is who ended it: ``client``, ``pod`` (its own watchdog), ``provider`` (it vanished), ``reaper``;
    ``reason`` says why. ``spent_usd`` is price x time, as counted here, until ``gone_at``, or until it was kept or
    handed over; from ``billed_from`` on, where an earlier run paid for the time before.
    """

    name: str
    state: str
    asked_at: str
    gpu_type: str | None
    gpu_count: int
    listed_price: float | None
    cloud: str
    pod: str | None = None
    price: float | None = None
    created_at: str | None = None
    data_center: str | None = None
    ssh_host: str | None = None
    ssh_port: int | None = None
    ready_at: str | None = None
    working_at: str | None = None
    ending_at: str | None = None
    gone_at: str | None = None
    kept_until: str | None = None
    ended_by: str | None = None
    reason: str | None = None
    refusal: str | None = None
    spent_usd: float | None = None
    deadline_at: str | None = None
    billed_from: str | None = None


class PodRecord(Struct, kw_only=True):
    """All attempts of one run, and what its pods were told.

    ``secret`` is the name of the account secret that carries the host key (None where secrets are not allowed);
    ``host_key`` the public key that is pinned (``ssh-ed25519 AAAA...``). ``forecast`` is what the plan said.
    ``account`` stands for the API's address and the key that rented (a short digest): only they can say what is gone.
    """

    version: int = POD_VERSION
    run: str
    target: str
    attempts: list[Attempt] = field(default_factory=list)
    secret: str | None = None
    secret_open: bool = False
    host_key: str | None = None
    forecast: dict[str, Any] = field(default_factory=dict)
    account: str | None = None

    @property
    def current(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def open(self) -> list[Attempt]:
        """Attempts that may still cost money."""
        return [attempt for attempt in self.attempts if attempt.state in OPEN]

    @property
    def unended(self) -> list[Attempt]:
        """Open attempts that nobody wants to stay: all but the kept ones."""
        return [attempt for attempt in self.open if attempt.state != "kept"]

    @property
    def spent_usd(self) -> float:
        """What all ended attempts cost, as counted here, and what kept ones cost until they were kept."""
        return sum(attempt.spent_usd or 0.0 for attempt in self.attempts)


class PodFile:
    """``pod.json`` in a run's folder; the keys of its pods lie beside it (``client_key``, 0600) until they are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "pod.json"

    @property
    def client_key(self) -> Path:
        """The private key that opens the run's pods."""
        return self.folder / "client_key"

    @property
    def known_hosts(self) -> Path:
        """The pinned host key, in OpenSSH's format."""
        return self.folder / "known_hosts"

    @property
    def log(self) -> Path:
        """The container's log, as far as it was captured."""
        return self.folder / "container.log"

    def exists(self) -> bool:
        """Whether the run ever asked for a pod."""
        return self.path.exists()

    def load(self) -> PodRecord:
        """Read it.

        Raises:
            StepctlError: it is damaged, of a newer release, or not there.
        """
        try:
            record = msgspec.json.decode(self.path.read_bytes(), type=PodRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise StepctlError(
                f"{self.path} cannot be read: {error}",
                cost="what the run rented, if it is still there",
                next="stepctl pod ls",
                code="unreadable_pod",
            ) from error
        if record.version > POD_VERSION:
            raise StepctlError(
                f"{self.path} was written by a newer stepctl", next="install a newer release", code="unreadable_pod"
            )
        return record

    def save(self, record: PodRecord) -> None:
        """Write it: temporary file, fsync, rename."""
        write_atomic(self.path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n", mode=0o600)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Held by one process from reading to writing. Not to be nested."""
        with locked(self.folder / ".pod", 0o600):
            yield

    def update(self, change: Callable[[PodRecord], None]) -> PodRecord:
        """Read, change, write."""
        with self.locked():
            record = self.load()
            change(record)
            self.save(record)
        return record
