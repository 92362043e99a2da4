"""A pod that stays after its run, for the next call on that target: always until a time, and for one call at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.files import write_atomic
from stepctl.base.names import iso, utc_now
from stepctl.runs.pods import Attempt, PodFile
from stepctl.targets.base import Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.command import MARK, POD_DIR
from stepctl.targets.runpod.login import Login
from stepctl.targets.runpod.records import moment

LIMITS = f"{POD_DIR}/limits"
KEPT = f"{POD_DIR}/kept"
"""Seconds that the pod may stay without a job; while it is there, nothing else but the pod's life ends the pod."""

CLAIMED = f"{POD_DIR}/claimed"
"""Written when a call takes the pod: boot grace and lease count from here."""

LEAST_LEFT_SEC = 60.0
"""A kept pod with less time left is not taken."""

_SAME = ("image", "gpu_count", "cloud", "network_volume_id", "container_disk_gb", "python", "venv")


def keep(login: Login, file: PodFile, attempt: Attempt, seconds: float, tell: Teller) -> None:
    """Leave the pod for the next call; told to the pod before it is recorded, so that it has its limit in any case.

    Raises:
        StepctlError: the pod cannot be told.
    """
    limit_it = f"echo {int(seconds)} > {KEPT}.new && mv {KEPT}.new {KEPT}"
    said = login.run(f"{limit_it} && rm -f {MARK} {CLAIMED} && echo kept")
    if "kept" not in said:
        raise StepctlError("the pod does not take a time limit", code="not_kept")
    until = utc_now() + timedelta(seconds=seconds)
    limit = moment(attempt.deadline_at)
    until = min(until, limit) if limit else until
    change(file, attempt, state="kept", kept_until=iso(until))
    price = attempt.price or attempt.listed_price
    rate = f" at ${price:.2f} an hour" if price else ""
    tell.notice(f"pod {attempt.pod} is kept{rate} until {iso(until)}: the next call on this target takes it")


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether this process is the only one that takes a kept pod of this project now."""
    fd = os.open(folder / ".kept", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(fd)


def claim(file: PodFile, options: Mapping[str, Any], api: Api, tell: Teller) -> Attempt | None:
    """Take a kept pod of this target for the run of ``file``; None when there is none that lives and fits.

    The pod's record and keys move from the run that left it to this one: this one's is written first, so that no
    moment is without one.
    """
    record = file.load()
    if record.open:
        return None
    runs = file.folder.parent
    with _alone(runs):
        for path in sorted(runs.glob("*/pod.json"), reverse=True):
            other = PodFile(path.parent)
            if path.parent == file.folder or not (attempt := _usable(other, record.target, options, api)):
                continue
            _move(other, file, attempt)
            _tell_pod(file, api, tell)
            tell.notice(f"taking pod {attempt.pod}, which an earlier call kept")
            return file.load().current
    return None


def _usable(other: PodFile, target: str, options: Mapping[str, Any], api: Api) -> Attempt | None:
    try:
        record = other.load()
        run = msgspec.json.decode((other.folder / "run.json").read_bytes())
    except (StepctlError, OSError, msgspec.MsgspecError):
        return None
    attempt = record.current
    if record.target != target or attempt is None or attempt.state != "kept" or attempt.pod is None:
        return None
    was = run.get("target_options", {})
    if any(was.get(name) != options.get(name) for name in _SAME):
        return None
    until = moment(attempt.kept_until)
    if until is None or (until - utc_now()).total_seconds() < LEAST_LEFT_SEC:
        return None
    cap = options.get("max_price_per_hour")
    if cap is not None and (attempt.price is None or attempt.price > cap):
        return None
    pod = api.pod(attempt.pod)
    return attempt if pod is not None and pod.live else None


def _move(other: PodFile, file: PodFile, attempt: Attempt) -> None:
    theirs, ours = other.load(), file.load()
    write_atomic(file.client_key, other.client_key.read_bytes(), mode=0o600)
    taken = msgspec.structs.replace(
        attempt, state="made", kept_until=None, asked_at=iso(utc_now()), ready_at=None, working_at=None
    )
    ours.attempts.append(taken)
    ours.host_key = theirs.host_key
    file.save(ours)
    change(other, attempt, state="handed", reason=f"kept, and taken by run {ours.run}")
    other.client_key.unlink(missing_ok=True)
    other.known_hosts.unlink(missing_ok=True)


def _tell_pod(file: PodFile, api: Api, tell: Teller) -> None:
    login = Login(api, file, tell)
    try:
        login.run(f"date > {CLAIMED} && rm -f {KEPT}")
    finally:
        login.close()
