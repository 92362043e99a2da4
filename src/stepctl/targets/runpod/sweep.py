"""All of the account that is ours: pods with the run they belong to and what guards them, and leftover secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from stepctl.base.errors import StepctlError
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.runs.store import RunStore
from stepctl.targets.base import Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import claim
from stepctl.targets.runpod.end import END_SECONDS, end_pod, end_unrecorded
from stepctl.targets.runpod.errors import BadKey, Rejected
from stepctl.targets.runpod.keys import SECRET_PREFIX, secret_name
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod, Secret, moment
from stepctl.targets.runpod.wants import run_of

REAP_AFTER = timedelta(minutes=2)
"""Past its deadline a pod ends itself; so much later it has failed to, and whoever sees it may."""

SECRET_AFTER = timedelta(hours=1)
"""A secret is made shortly before its pod: a younger one may belong to a call that is under way elsewhere."""

_MOMENT = re.compile(rf"{SECRET_PREFIX}(\d{{8}}T\d{{6}})\d{{3}}_")


@dataclass(frozen=True)
class Rented:
    """One of our pods.

    Attributes:
        pod: as the provider shows it.
        run: the run that it works for, or was made for where no record here knows it.
        age: seconds since it was made, by the provider's clock; None when that is not told.
        price: USD per hour; None when neither the provider nor the record tells it.
        spent_usd: price x age.
        deadline: when it ends itself at the latest; None when nothing says so.
        past_deadline: whether it is so long over that the pod has failed to end itself.
        attempt: its record here; None when no record of the run store knows it.
        stray: whether no open attempt of the run store knows it: nobody here waits for it.
        mark: the idempotency mark of its call; may be empty.
    """

    pod: Pod
    run: str
    age: float | None
    price: float | None
    spent_usd: float | None
    deadline: datetime | None
    past_deadline: bool
    attempt: Attempt | None
    stray: bool
    mark: str


@dataclass(frozen=True)
class Sweep:
    """What a look found. ``unreadable``: records of pods that could not be read, with why."""

    pods: list[Rented]
    secrets: list[Secret] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def sweep(api: Api, store: RunStore, pace: Pace, *, secrets: bool = True) -> Sweep:
    """Look at the account, and at the records of the run store.

    Args:
        api: the account.
        store: the runs that are known here.
        pace: for the wall clock where the provider's is not told.
        secrets: whether to look for leftover secrets too; a key that may not read them finds none.

    Raises:
        RunpodError: the list of pods cannot be had.
    """
    pods = [pod for pod in api.pods() if run_of(pod.name) and (pod.env or {}).get("STEPCTL_RUN") and not pod.ended]
    now = api.server_time() or pace.utc()
    records, unreadable = _records(store)
    attempts = [(record.run, each) for record in records for each in record.attempts if each.state != "handed"]
    # One that changed hands is the last one's, also when the call that took it died on the way.
    attempts.sort(key=lambda found: found[1].billed_from or "")
    known = {attempt.pod: (run, attempt) for run, attempt in attempts if attempt.pod}
    nobody: tuple[str, Attempt | None] = ("", None)
    rented = [_rented(pod, *known.get(pod.id, nobody), now) for pod in pods]
    waiting = {attempt.name for record in records for attempt in record.open if attempt.pod is None}
    # The pod of a create that had no answer yet is known by its name alone.
    rented = [replace(each, stray=False) if each.pod.name in waiting else each for each in rented]
    left = _leftover(api, {each.run for each in rented}, now) if secrets else []
    return Sweep(sorted(rented, key=lambda each: (each.pod.created_at or "", each.pod.id)), left, unreadable)


def _records(store: RunStore) -> tuple[list[PodRecord], dict[str, str]]:
    records, unreadable = [], {}
    for name in store.names():
        file = PodFile(store.folder(name))
        if not file.exists():
            continue
        try:
            records.append(file.load())
        except StepctlError as error:
            unreadable[name] = error.message
    return records, unreadable


def _rented(pod: Pod, run: str, attempt: Attempt | None, now: datetime) -> Rented:
    env = pod.env or {}
    run = run or env.get("STEPCTL_RUN") or ""
    created = pod.created
    age = None if created is None else max((now - created).total_seconds(), 0.0)
    price = pod.price or (attempt and (attempt.price or attempt.listed_price)) or None
    seconds = env.get("STEPCTL_MAX_SECONDS") or ""
    deadline = (
        created + timedelta(seconds=int(seconds)) if created and seconds.isascii() and seconds.isdecimal() else None
    )
    if attempt is not None and (tightened := moment(attempt.deadline_at)):
        deadline = min(deadline, tightened) if deadline else tightened
    return Rented(
        pod=pod,
        run=run,
        age=age,
        price=price,
        spent_usd=round(price * age / 3600, 6) if price and age is not None else None,
        deadline=deadline,
        past_deadline=deadline is not None and now > deadline + REAP_AFTER,
        attempt=attempt,
        stray=attempt is None or attempt.state in ("gone", "refused", "handed"),
        mark=env.get("STEPCTL_MARK") or "",
    )


def _leftover(api: Api, runs: set[str], now: datetime) -> list[Secret]:
    """Secrets of ours whose run has no pod."""
    living = {secret_name(run) for run in runs}
    try:
        found = [secret for secret in api.secrets() if secret.name.startswith(SECRET_PREFIX)]
    except (BadKey, Rejected):
        return []
    return [secret for secret in found if secret.name not in living and _old(secret, now)]


def _old(secret: Secret, now: datetime) -> bool:
    created = moment(secret.created_at)
    if created is None and (named := _MOMENT.match(secret.name)):
        created = datetime.strptime(named[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return created is None or now - created > SECRET_AFTER


def end_rented(
    api: Api, store: RunStore, rented: Rented, pace: Pace, by: str, reason: str, *, limit: float = END_SECONDS
) -> Attempt | None:
    """End one of our pods; in the record of its run where that is known here.

    Returns:
        Its receipt; None where no record of the run is here, or none that can be read.

    Raises:
        PodAlive: that it is gone could not be confirmed.
        OSError: it is gone, and the record cannot be written.
    """
    file = PodFile(store.folder(rented.run))
    try:
        record = claim(api, file, [rented.pod], pace, ending=(by, reason)) if file.exists() else None
    except StepctlError:  # it cannot be read: that must not keep a pod alive
        record = None
    except OSError:
        end_unrecorded(api, rented.run, rented.pod, pace, limit=limit)
        raise
    if record is None:
        end_unrecorded(api, rented.run, rented.pod, pace, limit=limit)
        return None
    attempt = next(each for each in record.attempts if each.pod == rented.pod.id)
    return end_pod(api, file, attempt, pace, by, reason, limit=limit)


def tell_strays(api: Api, store: RunStore, pace: Pace, tell: Teller) -> None:
    """Say which pods of ours no run here knows, and what they cost: they may be forgotten, or another machine's. A look
    that fails is passed over: it is not what the call is for."""
    try:
        strays = [each for each in sweep(api, store, pace, secrets=False).pods if each.stray]
    except StepctlError:
        return
    if strays:
        known = [each.price for each in strays if each.price]
        rate = f", ${sum(known):.2f} an hour" if known else ""
        names = ", ".join(each.pod.id for each in strays[:4]) + (" ..." if len(strays) > 4 else "")
        tell.notice(f"pods of yours that no run here knows: {names}{rate}; stepctl pod ls shows them")
