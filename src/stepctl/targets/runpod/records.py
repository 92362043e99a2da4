"""What is read from the provider and sent to it.

Answers are read tolerantly: unknown fields are passed over, and whatever is odd about one pod must not hide the others.
What is sent is strict: an unknown field would be refused (422).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

STOPPED = ("EXITED", "ERROR")
"""Statuses of a pod that works no more, and is still there, and may bill. One that we do not know says nothing."""

TERMINATED = "TERMINATED"


class SshAddress(Struct, frozen=True):
    """Where a pod's sshd is reached."""

    host: str
    port: int
    username: str = "root"


class PodSsh(Struct, frozen=True):
    """Only ``direct`` has exec and file transfer; the proxy is a shell alone."""

    direct: SshAddress | None = None


class RuntimePort(Struct, frozen=True):
    """A port of the running container. There can be rows of the provider's own beside ours."""

    private: int | None = None
    public: int | None = None
    type: str | None = None
    ip: str | None = None


class PodRuntime(Struct, frozen=True):
    """What is known of the running container."""

    uptime: float | None = None
    ports: list[RuntimePort] | None = None


class PodGpu(Struct, frozen=True):
    """The GPUs of a pod."""

    id: str
    count: int = 1


class Pod(Struct, frozen=True, rename="camel"):
    """One pod, as far as we look at it. ``cost`` is what was said; ``price`` what it means."""

    id: str
    name: str = ""
    status: str = ""
    cost: float | str | None = None
    env: dict[str, str | None] | None = None
    image: str | None = None
    gpu: PodGpu | None = None
    cloud: str | None = None
    data_center_id: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    ssh: PodSsh | None = None
    runtime: PodRuntime | None = None

    @property
    def price(self) -> float | None:
        """USD per hour for the whole pod; None where it is not said. 0 is what the provider says of an ended pod."""
        return usd(self.cost)

    @property
    def live(self) -> bool:
        """Whether it works or will."""
        return self.status not in (*STOPPED, TERMINATED)

    @property
    def ended(self) -> bool:
        """Whether the provider says that it was deleted."""
        return self.status == TERMINATED

    @property
    def address(self) -> SshAddress | None:
        """Where its sshd is reached, once it has a public port."""
        if self.ssh is not None and self.ssh.direct is not None:
            return self.ssh.direct
        for row in (self.runtime.ports if self.runtime else None) or []:
            if row.private == 22 and row.type == "tcp" and row.ip and row.public:
                return SshAddress(row.ip, row.public)
        return None

    @property
    def created(self) -> datetime | None:
        """When it was made, by the provider's clock."""
        return moment(self.created_at)


def usd(cost: float | str | None) -> float | None:
    """A price that was sent as number or text; None when it is missing, not a number, or not above 0."""
    try:
        value = float(cost)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def moment(text: str | None) -> datetime | None:
    """An RFC 3339 time; None when there is none, or it is none."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def read_pod(raw: Any) -> Pod:
    """One pod of an answer. Where a part of it has another shape, what identifies and prices it is read alone.

    Raises:
        msgspec.ValidationError: it has no id.
    """
    try:
        return msgspec.convert(raw, Pod, strict=False)
    except msgspec.ValidationError:
        if not isinstance(raw, dict):
            raise
        kept: dict[str, Any] = {k: v for k in ("id", "name", "status", "createdAt") if isinstance(v := raw.get(k), str)}
        cost = raw.get("cost")
        env = raw.get("env")
        if isinstance(env, dict):
            kept["env"] = {k: v for k, v in env.items() if isinstance(v, str)}
        return msgspec.convert(kept | ({"cost": cost} if isinstance(cost, int | float | str) else {}), Pod)


class Price(Struct, frozen=True):
    """List price in USD per hour of a **single** GPU, for each cloud."""

    secure: float | str | None = None
    community: float | str | None = None


class MaxCount(Struct, frozen=True):
    """GPUs of the largest machine of a type, for each cloud; not what is free."""

    secure: int | None = None
    community: int | None = None


class GpuType(Struct, frozen=True):
    """One row of the catalog. ``memory`` is in GB; ``availability`` is a guess."""

    id: str
    name: str = ""
    manufacturer: str | None = None
    memory: float | None = None
    secure: bool | None = None
    community: bool | None = None
    price: Price | None = None
    max_count: MaxCount | None = field(default=None, name="maxCount")
    availability: str | None = None


class LogLine(Struct, frozen=True):
    """One line of a pod's log."""

    line: str
    ts: str | None = None
    source: str | None = None


class Secret(Struct, frozen=True, rename="camel"):
    """A secret of the account; its value is never told."""

    name: str
    id: str | None = None
    created_at: str | None = None


class Problem(Struct, frozen=True):
    """An error's body: problem+json, or what older servers sent."""

    title: str | None = None
    detail: str | None = None
    error: Any = None
    message: Any = None
    errors: Any = None


class CreateGpu(Struct, frozen=True, rename="camel", omit_defaults=True):
    """``count`` has no default: left out, it gave a false "no instances"."""

    id: str
    count: int
    min_cuda_version: str | UnsetType = UNSET


class NetworkMount(Struct, frozen=True, rename="camel"):
    """A network volume in the container."""

    volume_id: str
    path: str


class Mounts(Struct, frozen=True):
    """At most one network volume."""

    network: tuple[NetworkMount, ...]


class CreatePod(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a create: every field is always sent, but those that are not set. ``disk`` is in GB."""

    name: str
    image: str
    gpu: CreateGpu
    cloud: Literal["SECURE", "COMMUNITY"]
    disk: int
    ports: tuple[str, ...] = ("22/tcp",)
    env: dict[str, str] = field(default_factory=dict)
    args: str | UnsetType = UNSET
    data_center_ids: tuple[str, ...] | UnsetType = UNSET
    mounts: Mounts | UnsetType = UNSET
