"""A pod that stays after its run, for the next call on that target: always until a time, and for one call at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.base.files import locked, write_atomic
from stepctl.base.names import iso, utc_now
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.runs.record import RunRecord
from stepctl.runs.store import RunStore
from stepctl.targets.base import Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.command import DIRECTORY, MARK
from stepctl.targets.runpod.end import end_pod, hand_over, spent
from stepctl.targets.runpod.login import Login
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import moment
from stepctl.targets.runpod.wants import save_ahead

KEEP = f"{DIRECTORY}/keep"
"""Says that the pod is to be kept: it does not end itself at once when its job has committed."""

KEPT = f"{DIRECTORY}/kept"
"""Seconds that the pod may stay without a job, and what makes it new; while it is there, nothing else but the pod's
life ends the pod."""

CLAIMED = f"{DIRECTORY}/claimed"
"""Written when a call takes the pod: boot grace and lease count from here."""

LEAST_LEFT_SEC = 60.0
"""A kept pod with less time left is not taken."""

LEAST_WORK_SEC = 300.0
"""Nor is one whose own deadline leaves less than this, before the time that its job has to save."""

_SPARE = 1.5
"""A pod must live so many times as long as the call is forecast to take."""

_SAME = (
    "api_url",
    "image",
    "gpu_count",
    "cloud",
    "data_center_ids",
    "network_volume_id",
    "container_disk_gb",
    "min_cuda_version",
    "python",
    "venv",
    # Another machine finds a pod by the mark of the call that made it: whoever waits for that call waits for this one.
    "mark",
)


def keep(login: Login, file: PodFile, attempt: Attempt, seconds: float, tell: Teller) -> None:
    """Leave the pod for the next call; told to the pod before it is recorded, so that it has its limit in any case.

    Raises:
        StepctlError: the pod cannot be told.
    """
    limit_it = f'echo "{int(seconds)} $(date +%s%N)" > {KEPT}.new && mv {KEPT}.new {KEPT}'
    if not login.does(f"rm -f {MARK} {CLAIMED} && {limit_it}"):
        raise StepctlError("the pod does not take a time limit", code="not_kept")
    now = login.api.server_time() or utc_now()
    until = now + timedelta(seconds=seconds)
    limit = moment(attempt.deadline_at)
    until = min(until, limit) if limit else until
    change(file, attempt, state="kept", kept_until=iso(until), spent_usd=spent(attempt, now))
    price = attempt.price or attempt.listed_price
    rate = f" at ${price:.2f} an hour" if price else ""
    tell.notice(f"pod {attempt.pod} is kept{rate} until {iso(until)}: the next call on this target takes it")


def claim(
    file: PodFile, options: Mapping[str, Any], api: Api, pace: Pace, tell: Teller, fits: Callable[[Attempt], bool]
) -> Attempt | None:
    """Take a kept pod of this target for the run of ``file``; None when there is none that lives and fits.

    The pod's record and keys move from the run that left it to this one: this one's is written first, so that no
    moment is without one. A pod that cannot be told is ended.

    Args:
        fits: whether the call may run on the GPU of that attempt.
    """
    record = file.load()
    if record.open:
        return None
    runs = file.folder.parent
    # One process of this project takes a kept pod at a time.
    with locked(runs / ".kept"):
        for path in sorted(runs.glob("*/pod.json"), reverse=True):
            other = PodFile(path.parent)
            if path.parent == file.folder or not (attempt := _usable(other, record, options, api, fits)):
                continue
            taken = _move(other, file, attempt, api.server_time() or utc_now())
            try:
                _tell_pod(file, api, tell)
            except StepctlError as error:
                tell.notice(f"pod {attempt.pod}, which an earlier call kept, cannot be taken: {error.message}")
                end_pod(api, file, taken, pace, "client", "it was kept, and cannot be taken")
                continue
            tell.notice(f"taking pod {attempt.pod}, which an earlier call kept")
            return file.load().current
    return None


def _usable(
    other: PodFile, record: PodRecord, options: Mapping[str, Any], api: Api, fits: Callable[[Attempt], bool]
) -> Attempt | None:
    try:
        hand_over(other)
        theirs = other.load()
        run = msgspec.json.decode((other.folder / "run.json").read_bytes())
    except (StepctlError, OSError, msgspec.MsgspecError):
        return None
    attempt = theirs.current
    if theirs.account not in (None, api.account) or theirs.target != record.target:
        return None
    if attempt is None or attempt.state != "kept" or attempt.pod is None:
        return None
    needed = _ahead(attempt) + max(LEAST_WORK_SEC, _SPARE * float(record.forecast.get("forecast_sec") or 0.0))
    if _left(attempt.kept_until) < LEAST_LEFT_SEC or (attempt.deadline_at and _left(attempt.deadline_at) < needed):
        return None
    cap, was = options.get("max_price_per_hour"), run.get("target_options", {})
    too_dear = cap is not None and (attempt.price is None or attempt.price > cap)
    if too_dear or any(_plain(was.get(name)) != _plain(options.get(name)) for name in _SAME):
        return None
    pod = api.pod(attempt.pod)
    return attempt if pod is not None and pod.live and fits(attempt) else None


def _plain(option: Any) -> Any:
    """As it is after its way through a file."""
    return list(option) if isinstance(option, tuple) else option


def _left(until: str | None) -> float:
    at = moment(until)
    return 0.0 if at is None else (at - utc_now()).total_seconds()


def _ahead(attempt: Attempt) -> float:
    """Seconds before its deadline at which a pod asks its job to save."""
    created, deadline = moment(attempt.created_at), moment(attempt.deadline_at)
    return save_ahead(int((deadline - created).total_seconds())) if created and deadline else 0.0


def _move(other: PodFile, file: PodFile, attempt: Attempt, now: datetime) -> Attempt:
    """From here on the new run pays."""
    theirs = other.load()
    write_atomic(file.client_key, other.client_key.read_bytes(), mode=0o600)
    fresh = {"state": "made", "asked_at": iso(now), "billed_from": iso(now)}
    empty = ("kept_until", "ready_at", "working_at", "ending_at", "ended_by", "reason", "spent_usd")
    taken = msgspec.structs.replace(attempt, **fresh, **dict.fromkeys(empty))

    def take(ours: PodRecord) -> None:
        ours.attempts.append(taken)
        ours.host_key = theirs.host_key

    run = file.update(take).run
    change(other, attempt, state="handed", reason=f"kept, and taken by run {run}", spent_usd=spent(attempt, now))
    _tell_run(other)
    other.client_key.unlink(missing_ok=True)
    other.known_hosts.unlink(missing_ok=True)
    return taken


def _tell_run(other: PodFile) -> None:
    """The report of the run that kept the pod says what it cost in the end."""
    record = other.load()

    def change(run: RunRecord) -> None:
        if run.report is not None:
            run.report["pods"] = msgspec.to_builtins(record.attempts)
            run.report["cost_usd"] = round(record.spent_usd, 4)

    RunStore(other.folder.parent).update(record.run, change)


def _tell_pod(file: PodFile, api: Api, tell: Teller) -> None:
    login = Login(api, file, tell)
    try:
        if not login.does(f"date +%s%N > {CLAIMED}.new && mv {CLAIMED}.new {CLAIMED} && rm -f {KEPT}"):
            raise StepctlError("the pod does not say that it is taken", code="not_taken")
    finally:
        login.close()
