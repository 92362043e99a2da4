"""Ending pods, until the provider confirms that they are gone: the receipt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from stepctl.base.names import iso
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import WAITING, change, claim, clock, settle_absent, stamp, taken_by
from stepctl.targets.runpod.errors import BadKey, Blocked, PodAlive, RunpodError
from stepctl.targets.runpod.keys import close_secret, forget_keys
from stepctl.targets.runpod.look import look
from stepctl.targets.runpod.owner import OTHER, is_other, note, takes_over
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod, moment

END_SECONDS = 120.0
_END_POLLS = 60
MISSES = 3
"""Answers in a row, a poll apart, that do not know a pod before it counts as gone; nor may the list show it."""

MOST_DENIALS = 3


def end_pod(
    api: Api,
    file: PodFile,
    attempt: Attempt,
    pace: Pace,
    by: str,
    reason: str,
    *,
    limit: float = END_SECONDS,
    already: str = "provider",
) -> Attempt:
    """End one pod and wait until that is confirmed. Repeating it does no harm.

    A record that cannot be written keeps no pod alive.

    Args:
        api: the account.
        file: the run's record; written before the first request.
        attempt: with ``pod``.
        pace: of the questions.
        by: who ends it: ``client``, ``reaper``; who asked for its end before stays recorded.
        reason: why.
        limit: seconds, 60 polls at most and eight at least.
        already: who ended it where it turns out to be gone before anybody asked.

    Raises:
        PodAlive: that it is gone could not be confirmed, for example because ``api`` is of another account.
        OSError: it is gone, and the record does not say so.
    """
    pod = attempt.pod
    assert pod is not None
    if attempt.state == "gone":
        return attempt
    if not takes_over(api, file, pod, pace):
        raise pod_alive(file.load().run, [attempt], OTHER)
    asked_before = attempt.state == "ending"
    if not asked_before:
        attempt = _ending(file, attempt, state="ending", ending_at=stamp(api, pace), ended_by=by, reason=reason)
    deadline = pace.deadline(_bound(limit, pace))
    watch = _Watch(api, pod)
    while not watch.gone():
        if deadline.over or watch.denials >= MOST_DENIALS:
            raise pod_alive(file.load().run, [attempt], watch.trouble)
        pace.poll()
    gone = watch.missed_at or clock(api, pace)
    by_itself = not watch.was_there and not asked_before
    if by_itself:
        # Nobody saw when: at its limit at the latest.
        limits = [at for at in (moment(attempt.deadline_at), moment(attempt.kept_until)) if at is not None]
        gone = min([gone, *limits])
    return change(
        file,
        attempt,
        state="gone",
        gone_at=iso(gone),
        spent_usd=spent(attempt, gone),
        **({"ended_by": already} if by_itself else {}),
    )


def _bound(limit: float, pace: Pace) -> float:
    """Seconds; fewer where an emulated provider is asked faster, and never fewer than it takes."""
    return max(min(limit, _END_POLLS * pace.poll_seconds), 8 * pace.poll_seconds)


def _ending(file: PodFile, attempt: Attempt, **fields: Any) -> Attempt:
    try:
        return change(file, attempt, **fields)
    except OSError:
        return msgspec.structs.replace(attempt, **fields)


def end_unrecorded(api: Api, run: str, pod: Pod, pace: Pace, *, limit: float = END_SECONDS) -> None:
    """End a pod of which no record is here, and wait until that is confirmed.

    Raises:
        PodAlive: that it is gone could not be confirmed.
    """
    deadline = pace.deadline(_bound(limit, pace))
    watch = _Watch(api, pod.id)
    while not watch.gone():
        if deadline.over or watch.denials >= MOST_DENIALS:
            raise pod_alive(run, [unrecorded(pod)], watch.trouble)
        pace.poll()


def unrecorded(pod: Pod) -> Attempt:
    """A pod of which no record is here, as its record would be."""
    return Attempt(
        name=pod.name,
        state="ending",
        asked_at=pod.created_at or "",
        gpu_type=pod.gpu.id if pod.gpu else None,
        gpu_count=pod.gpu.count if pod.gpu else 1,
        listed_price=None,
        cloud=pod.cloud or "",
        pod=pod.id,
        price=pod.price,
    )


class _Watch:
    """Asks for the end of one pod until it shows no more."""

    def __init__(self, api: Api, pod: str) -> None:
        self._api, self._pod = api, pod
        self._asks = self._misses = self.denials = 0
        self.was_there = False
        self.missed_at: datetime | None = None
        self.trouble = ""

    def gone(self) -> bool:
        """Ask once more; whether the end is confirmed."""
        try:
            trouble = self._ask() if self._misses == 0 else ""
            return self._look(trouble)
        except (BadKey, Blocked) as error:
            self.denials += 1
            self.trouble = error.message
        except RunpodError as error:
            self.trouble = error.message
        return False

    def _ask(self) -> str:
        """DELETE and the action ``terminate`` in turns: where one does not take, the other may. What went wrong."""
        self._asks += 1
        try:
            if self._asks % 2:
                self.was_there |= self._api.delete(self._pod)
            else:
                self.was_there |= self._api.action(self._pod, "terminate")
        except (BadKey, Blocked):
            raise
        except RunpodError as error:
            # It may have had its effect all the same.
            self.was_there = True
            return error.message
        return ""

    def _look(self, trouble: str) -> bool:
        pod = self._api.pod(self._pod)
        if pod is not None and not pod.ended:
            self._misses, self.missed_at, self.was_there = 0, None, True
            self.trouble = trouble or f"the provider says it is {pod.status}"
            return False
        self._misses += 1
        self.missed_at = self.missed_at or self._api.server_time()
        if self._misses < MISSES:
            return False
        if all(each.ended for each in self._api.pods() if each.id == self._pod):
            return True
        self._misses, self.missed_at = 0, None
        self.trouble = "the provider's list still shows it"
        return False


def spent(attempt: Attempt, until: datetime) -> float | None:
    """What a pod cost its run until then, in USD: price x time since it was made, or taken over from an earlier run;
    None where no price is known."""
    price = attempt.price or attempt.listed_price
    begun = moment(attempt.billed_from) or moment(attempt.created_at) or moment(attempt.asked_at)
    if price is None or begun is None:
        return None
    return round(price * max((until - begun).total_seconds(), 0.0) / 3600, 6)


def end_all(
    api: Api,
    file: PodFile,
    pace: Pace,
    by: str,
    reason: str,
    *,
    limit: float = END_SECONDS,
    already: str = "provider",
    spare_kept: bool = False,
) -> PodRecord:
    """End every pod of a run: those that are known, those of creates without an answer, and any other of its name.

    A create that is unresolved and shows in no list stays ``unresolved`` until ``ABSENT_AFTER``; that is no error, but
    the run's keys stay as well. With ``spare_kept`` pods that are left for the next call stay.

    Raises:
        PodAlive: for at least one of them the end could not be confirmed; all were tried.
        OSError: the record cannot be written; all were tried.
    """
    hand_over(file)
    record = file.load()
    if record.open and all(spare_kept and attempt.state == "kept" for attempt in record.open):
        return record
    if not record.open and not file.client_key.exists():
        # The keys are forgotten last: with them there, an earlier end may have been cut short of its look at the list.
        forget_keys(api, file)
        return record

    def end_known() -> None:
        for attempt in file.load().open:
            if attempt.pod is None or attempt.pod in alive or (spare_kept and attempt.state == "kept"):
                continue
            try:
                end_pod(api, file, attempt, pace, by, reason, limit=limit, already=already)
            except PodAlive as error:
                alive[attempt.pod] = attempt
                troubles.append(str(error.details["trouble"]))
            except OSError as error:
                unwritten.append(error)

    alive: dict[str, Attempt] = {}
    troubles: list[str] = []
    unwritten: list[OSError] = []
    end_known()
    trouble = _find(api, file, pace, by, reason)
    if not unwritten:
        end_known()
    # Without a list nothing is known of the creates that had no answer.
    unknown = [attempt for attempt in file.load().open if attempt.pod is None] if trouble else []
    if alive or unknown:
        raise pod_alive(record.run, [*alive.values(), *unknown], next(filter(None, [*troubles, trouble]), ""))
    if unwritten:
        raise unwritten[0]
    record = file.load()
    if record.open:
        # A pod that comes after all has not got what the secret held: its log tells its own key.
        if close_secret(api, file) and all(each.pod is None for each in record.open):
            file.update(lambda each: setattr(each, "host_key", None))
    else:
        forget_keys(api, file)
    return record


def hand_over(file: PodFile) -> None:
    """Let go of kept pods that another run has taken: they are that one's to pay for, and to end."""
    for attempt in file.load().open:
        found = taken_by(file, attempt) if attempt.state == "kept" else None
        if found is not None:
            run, since = found
            reason = f"kept, and taken by run {run}"
            change(file, attempt, state="handed", reason=reason, spent_usd=spent(attempt, since))


def _find(api: Api, file: PodFile, pace: Pace, by: str, reason: str) -> str:
    """Bring what the account's list shows of the run into the record; what went wrong, empty when nothing did."""
    record = file.load()
    waiting = [attempt for attempt in record.open if attempt.state in WAITING]
    try:
        pods = look(api, record.run, [attempt.name for attempt in waiting], pace)
    except RunpodError as error:
        return error.message
    try:
        record = claim(api, file, pods, pace, ending=(by, reason))
    except OSError:
        for pod in pods:
            end_unrecorded(api, record.run, pod, pace)
        raise
    if pods:
        note(api, file)
    if waiting and is_other(api, file):
        return OTHER
    for attempt in [each for each in record.open if each.state in WAITING]:
        settle_absent(api, file, attempt, pace)
    return ""


def require_owner(api: Api, file: PodFile, pace: Pace) -> None:
    """Before anything is rented for a run: be of the account of what it has open, if anything.

    Raises:
        PodAlive: it was rented with another key.
    """
    left = file.load().open
    known = not left or any(each.pod and takes_over(api, file, each.pod, pace) for each in left)
    if not known and is_other(api, file):
        raise pod_alive(file.load().run, left, OTHER)
    note(api, file)


def pod_alive(run: str, attempts: Sequence[Attempt], trouble: str) -> PodAlive:
    """The error that says which pods may still cost money, and what to type."""
    names = ", ".join(attempt.pod or f"{attempt.name} (its create had no answer)" for attempt in attempts)
    prices = [attempt.price or attempt.listed_price for attempt in attempts]
    known = sum(price for price in prices if price is not None)
    several = len(attempts) > 1
    return PodAlive(
        f"{'pods' if several else 'pod'} {names} may still be alive: the end is not confirmed"
        + (f" ({trouble})" if trouble else ""),
        cost=f"{'together ' if several else ''}${known:.2f} per hour" if known else "what the provider asks for it",
        next=f"stepctl pod rm {run}",
        details={
            "run": run,
            "pods": [
                {"pod": attempt.pod, "name": attempt.name, "usd_per_hour": price}
                for attempt, price in zip(attempts, prices, strict=True)
            ],
            "trouble": trouble,
        },
    )
