"""Changes of ``pod.json``: written before the act that they tell of, or as soon as its outcome is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from stepctl.base.errors import StepctlError
from stepctl.base.names import iso
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.targets.base import GivenUp
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod, moment
from stepctl.targets.runpod.wants import run_of

ABSENT_AFTER = timedelta(minutes=15)
"""The rule of an unresolved create: it made nothing when its name was in no list that was read, the last one of them at
least this long after it was sent. A pod that still came later would end itself: no client renews its lease."""

WAITING = ("intended", "unresolved")
"""States of an attempt whose pod, if there is one, is not known yet."""


def change(file: PodFile, attempt: Attempt, **fields: Any) -> Attempt:
    """Change one attempt, found by its name and pod, and write the file; the changed attempt.

    Raises:
        GivenUp: another command has entered something else there, for it ends the run's pods.
    """

    index = -1

    def apply(record: PodRecord) -> None:
        nonlocal index
        index = _index(record, attempt)
        for name, value in fields.items():
            setattr(record.attempts[index], name, value)

    return file.update(apply).attempts[index]


def make_current(file: PodFile, attempt: Attempt) -> Attempt:
    """Put an attempt last: a create that was asked for later may be the one that came to nothing."""
    with file.locked():
        record = file.load()
        index = _index(record, attempt)
        if index != len(record.attempts) - 1:
            record.attempts.append(record.attempts.pop(index))
            file.save(record)
    return record.attempts[-1]


def _index(record: PodRecord, attempt: Attempt) -> int:
    for index, each in enumerate(record.attempts):
        if (each.name, each.pod) == (attempt.name, attempt.pod):
            return index
    raise GivenUp(
        f"another command ends the pods of run {record.run}: {attempt.name} is not this one's any more",
        safe="nothing was trained",
        next="stepctl pod ls",
    )


def taken_by(file: PodFile, attempt: Attempt) -> tuple[str, datetime] | None:
    """The run that has a kept pod in its record, and from when on, though the record of the run that left it does not
    tell: the call that took it died between the two writes."""
    for path in file.folder.parent.glob("*/pod.json"):
        try:
            record = PodFile(path.parent).load()
        except StepctlError:
            continue
        for each in record.attempts:
            since = moment(each.billed_from)
            mine = path.parent == file.folder or each.pod != attempt.pod or each.pod is None
            if not mine and since is not None and (each.billed_from or "") > (attempt.billed_from or ""):
                return record.run, since
    return None


def made_of(pod: Pod) -> dict[str, Any]:
    """What a pod's record says once the pod is known."""
    return {
        "state": "made",
        "pod": pod.id,
        "price": pod.price,
        "created_at": pod.created_at,
        "data_center": pod.data_center_id,
    } | ({"gpu_type": pod.gpu.id, "gpu_count": pod.gpu.count} if pod.gpu else {})


def is_ours(pod: Pod, run: str) -> bool:
    """Whether a pod belongs to the run: its name says so, and its environment does not say otherwise."""
    named = run_of(pod.name)
    marked = (pod.env or {}).get("STEPCTL_RUN")
    return named is not None and named[0] == run and marked in (None, "", run)


def of_run(pods: Iterable[Pod], run: str) -> list[Pod]:
    """The run's pods that are still there, the oldest first."""
    found = [pod for pod in pods if is_ours(pod, run) and not pod.ended]
    return sorted(found, key=lambda pod: (pod.created_at or "~", pod.id))


def settle_absent(api: Api, file: PodFile, attempt: Attempt, pace: Pace) -> Attempt:
    """Record that no list shows an attempt's pod: unresolved, or, when that is long enough, that none was made."""
    asked = moment(attempt.asked_at)
    if asked is not None and clock(api, pace) - asked >= ABSENT_AFTER:
        return change(file, attempt, state="refused", refusal="no pod of that name ever appeared", spent_usd=0.0)
    return change(file, attempt, state="unresolved")


def clock(api: Api, pace: Pace) -> datetime:
    """Now, by the provider's clock once it is known: the one here may be wrong, or be set meanwhile."""
    return api.server_time() or pace.utc()


def stamp(api: Api, pace: Pace) -> str:
    """Now, for a record."""
    return iso(clock(api, pace))


def claim(
    api: Api, file: PodFile, pods: Sequence[Pod], pace: Pace, *, ending: tuple[str, str] | None = None
) -> PodRecord:
    """Enter the run's pods that the record does not know yet: nothing that was seen is ever forgotten.

    An open attempt without a pod gets the first living pod of its name. Whatever else there is was made twice, or came
    late: it is entered before the attempts that it belongs to, as one to be ended. So is one that was called gone.

    Args:
        api: the account, for the time.
        file: the record.
        pods: of :func:`of_run`.
        pace: for the time where ``api`` has none.
        ending: who ends **all** that is new, and why; None when one may be kept.
    """
    with file.locked():
        return _claim(file, pods, stamp(api, pace), ending)


def _claim(file: PodFile, pods: Sequence[Pod], now: str, ending: tuple[str, str] | None) -> PodRecord:
    record = file.load()
    known = {attempt.pod for attempt in record.attempts}
    new = sorted((pod for pod in pods if pod.id not in known), key=lambda pod: not pod.live)
    for pod in new:
        same = [attempt for attempt in record.attempts if attempt.name == pod.name]
        waiting = next((each for each in same if each.pod is None and each.state in WAITING), None)
        to_end = ending or (None if waiting and pod.live else ("client", "it was made twice"))
        if waiting is None:
            waiting = _like(same, pod, now)
            record.attempts.insert(record.attempts.index(same[0]) if same else 0, waiting)
        _enter(waiting, pod, to_end, now)
    listed = {pod.id: pod for pod in pods}
    back = [attempt for attempt in record.attempts if attempt.state == "gone" and attempt.pod in listed]
    for attempt in back:
        attempt.state, attempt.gone_at, attempt.spent_usd = "ending", None, None
        if ending is not None:
            attempt.ended_by, attempt.reason = ending
    if new or back:
        file.save(record)
    return record


def _enter(attempt: Attempt, pod: Pod, to_end: tuple[str, str] | None, when: str) -> None:
    changes = made_of(pod)
    if to_end is not None:
        by, reason = to_end
        changes |= {"state": "ending", "ended_by": by, "reason": reason, "ending_at": when}
    for name, value in changes.items():
        setattr(attempt, name, value)


def _like(same: list[Attempt], pod: Pod, now: str) -> Attempt:
    """A new record for a pod of which there is none, or whose record tells of another pod."""
    like = same[0] if same else None
    return Attempt(
        name=pod.name,
        state="ending",
        asked_at=like.asked_at if like else pod.created_at or now,
        gpu_type=like.gpu_type if like else None,
        gpu_count=like.gpu_count if like else 1,
        listed_price=like.listed_price if like else None,
        cloud=pod.cloud or (like.cloud if like else "SECURE"),
    )
