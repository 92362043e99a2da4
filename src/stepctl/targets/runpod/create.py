"""Getting a pod: one candidate after the other, the intent recorded before each create, none repeated blindly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from stepctl.base.names import iso
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.targets.base import GivenUp, Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import WAITING, change, claim, made_of, make_current, settle_absent, stamp
from stepctl.targets.runpod.choose import Candidate, Choice, choose, nothing_left
from stepctl.targets.runpod.end import end_pod
from stepctl.targets.runpod.errors import (
    Ambiguous,
    BadKey,
    NoCapacity,
    NoStock,
    PriceAbove,
    Rejected,
    RunpodError,
    Unreachable,
)
from stepctl.targets.runpod.look import look
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod, moment
from stepctl.targets.runpod.wants import Wants, body_of, limit_at, next_name

MOST_TRIES = 2
"""Creates of one type."""

MOST_UNRESOLVED = 2
"""Creates without an answer and without a pod that shows: each may still become a pod."""

MOST_REJECTED = 3
"""Refusals that are not about stock, before they count as one of the request: a broken rule fails on every type."""

SEARCH_SECONDS = 600.0
SECOND_ROUND_POLLS = 3
_PRICE_LOOKS = 3


def make_pod(
    api: Api,
    file: PodFile,
    wants: Wants,
    pace: Pace,
    tell: Teller,
    env_of: Callable[[], Mapping[str, str]] | None = None,
    *,
    adopt: bool = True,
) -> Attempt:
    """Get a pod for a run: the one that its record knows, when it still lives, else a new one.

    Its price is checked; whether it can be reached is not. Whatever happens, ``end_all`` on the same file leaves none.

    Args:
        api: the account.
        file: the run's record; it is there already, and is written before each act.
        wants: what is wanted.
        pace: of the questions.
        tell: hears what is tried.
        env_of: makes the environment of a new pod, in the place of that of ``wants``.
        adopt: take a living pod that an earlier call left; otherwise it is ended.

    Returns:
        The attempt, ``made`` (or as far as it was), with the pod's real price.

    Raises:
        PriceAbove: what is to be had costs too much.
        NoCapacity: nothing that was tried is in stock.
        Ambiguous: creates had no answer, and no list shows a pod of theirs.
        PodAlive: a pod that is not wanted could not be ended for certain.
        UsageError: a GPU type is not known.
        RunpodError: another refusal.
    """
    living = _take_up(api, file, wants, pace, tell, adopt)
    if living is not None:
        return living
    if env_of is not None:
        wants = replace(wants, env=env_of())
    choice = choose(api.gpus(wants.gpu_count, wants.cloud, wants.min_cuda_version), wants)
    if not choice.candidates:
        raise nothing_left(choice, wants)
    return _Search(api, file, wants, pace, tell, choice).run()


def _take_up(api: Api, file: PodFile, wants: Wants, pace: Pace, tell: Teller, adopt: bool) -> Attempt | None:
    """What an earlier call left: its living pod; whatever else is open is ended, or stays unresolved."""
    record = file.load()
    if not record.attempts:
        return None
    waiting = [attempt.name for attempt in record.open if attempt.state in WAITING]
    listed = look(api, wants.run, waiting, pace)
    forgotten = "no key that opens it is left"
    record = claim(api, file, listed, pace, ending=None if adopt else ("client", forgotten))
    found: Attempt | None = None
    for attempt in reversed(record.open):
        if attempt.pod is None:
            settle_absent(api, file, attempt, pace)
            continue
        if adopt and attempt.state != "ending":
            # One of the two is enough: a living pod is not given up for a single odd answer.
            pod = next((each for each in listed if each.id == attempt.pod), None) or api.pod(attempt.pod)
            if pod is not None and pod.live and found is None:
                found = accept(api, file, attempt, wants, pace, tell)
                continue
        why = "one pod is enough" if found else "it does not work any more"
        end_pod(api, file, attempt, pace, "client", why if adopt else forgotten)
    return found


def accept(api: Api, file: PodFile, attempt: Attempt, wants: Wants, pace: Pace, tell: Teller) -> Attempt | None:
    """Hold a pod's real price against the cap; a pod that costs too much is ended at once.

    A price that is not told is never 0: where nothing caps it the listed one counts, with a notice.

    Returns:
        The attempt with its price and deadline; None when the pod was ended.
    """
    assert attempt.pod is not None
    price = attempt.price or _ask_price(api, attempt.pod, pace)
    cap = wants.max_price_per_hour
    if price is not None:
        too_dear = cap is not None and price > cap + 1e-9
        why = f"it costs ${price:.2f} per hour, above max_price_per_hour ${cap:.2f}" if too_dear else ""
    elif cap is not None:
        why = "its price is not told, and max_price_per_hour is set"
    else:
        price = attempt.listed_price
        why = "its price is not known, and max_cost_usd is set" if price is None and wants.max_cost_usd else ""
        if not why:
            told = f"the listed ${price:.2f} per hour counts" if price else "what it costs is not known"
            tell.notice(f"the provider does not tell the price of pod {attempt.pod}: {told}")
    if why:
        tell.notice(f"pod {attempt.pod} is deleted: {why}")
        end_pod(api, file, change(file, attempt, price=price), pace, "client", why)
        return None
    created = moment(attempt.created_at) or pace.utc()
    seconds, _ = limit_at(wants, attempt.listed_price, price)
    deadline = created + timedelta(seconds=seconds)
    return make_current(file, change(file, attempt, price=price, deadline_at=iso(deadline)))


def _ask_price(api: Api, pod_id: str, pace: Pace) -> float | None:
    for _ in range(_PRICE_LOOKS):
        pace.poll()
        pod = api.pod(pod_id)
        if pod is not None and pod.price is not None:
            return pod.price
    return None


class _Search:
    """One walk over the candidates, twice at most."""

    def __init__(self, api: Api, file: PodFile, wants: Wants, pace: Pace, tell: Teller, choice: Choice) -> None:
        self._api, self._file, self._wants, self._pace, self._tell = api, file, wants, pace, tell
        self._choice = choice
        self._tries: dict[str, int] = {}
        self._refusals: dict[str, RunpodError] = {}
        self._dear: dict[str, str] = {}
        self._unresolved = 0

    def run(self) -> Attempt:
        """Until a pod is there.

        Raises:
            RunpodError: none is to be had.
        """
        deadline = self._pace.deadline(SEARCH_SECONDS)
        waiting: Sequence[Candidate] = self._choice.candidates
        while waiting:
            for candidate in waiting:
                if self._refusals and deadline.over:
                    raise self._failed()
                found = self._try(candidate)
                if found is not None:
                    return found
            waiting = [each for each in waiting if self._again(each)]
            if waiting:
                self._tell.notice("nothing of that is in stock now; once more in a moment")
                self._pace.wait(SECOND_ROUND_POLLS * self._pace.poll_seconds)
        raise self._failed()

    def _again(self, candidate: Candidate) -> bool:
        name = candidate.gpu.id
        return isinstance(self._refusals.get(name), NoStock) and self._tries[name] < MOST_TRIES

    def _try(self, candidate: Candidate) -> Attempt | None:
        """Ask for one pod of a type; once more where that is safe. None when this type is not to be had."""
        name = candidate.gpu.id
        while self._tries.get(name, 0) < MOST_TRIES:
            self._tries[name] = self._tries.get(name, 0) + 1
            attempt = self._intend(candidate)
            try:
                pod = self._api.create(body_of(self._wants, attempt.name, name, candidate.price))
            except Ambiguous as error:
                found = self._resolve(attempt, error)
            except RunpodError as error:
                found = self._refused(attempt, name, error)
                if found is None and not isinstance(error, Unreachable):
                    return None
            else:
                found = self._made(attempt, pod)
            if found is not None:
                return self._accept(name, found)
        return None

    def _made(self, attempt: Attempt, pod: Pod) -> Attempt:
        try:
            return change(self._file, attempt, **made_of(pod))
        except GivenUp:
            # Whatever the other command has entered under that name, this pod is not to be forgotten.
            claim(self._api, self._file, [pod], self._pace, ending=("client", "its run was given up"))
            raise

    def _intend(self, candidate: Candidate) -> Attempt:
        price = f", listed at ${candidate.price:.2f} per hour" if candidate.price else ""
        self._tell.notice(f"asking for a pod with {self._wants.gpu_count} x {candidate.gpu.id}{price}")
        attempt = Attempt(
            name="",
            state="intended",
            asked_at=stamp(self._api, self._pace),
            gpu_type=candidate.gpu.id,
            gpu_count=self._wants.gpu_count,
            listed_price=candidate.price,
            cloud=self._wants.cloud,
        )

        def intend(record: PodRecord) -> None:
            attempt.name = next_name(record)
            record.attempts.append(attempt)

        self._file.update(intend)
        return attempt

    def _resolve(self, attempt: Attempt, error: Ambiguous) -> Attempt | None:
        """Look for the pod of a create without an answer; None when no list shows it and one more may be asked for.

        Raises:
            Ambiguous: too many are unresolved.
            RunpodError: the lists cannot be had; the attempt stays unresolved.
        """
        attempt = change(self._file, attempt, state="unresolved")
        self._tell.notice(f"{error.message}; looking for it by its name")
        pods = look(self._api, self._wants.run, [attempt.name], self._pace)
        found = self._adopt(pods)
        if found is None and attempt.name not in {pod.name for pod in pods}:
            self._unresolved += 1
            if self._unresolved >= MOST_UNRESOLVED:
                raise error
            self._tell.notice(f"no list shows {attempt.name}; asking once more, under another name")
        return found

    def _adopt(self, pods: Sequence[Pod]) -> Attempt | None:
        """Enter what the list shows of the run: the newest living pod is kept, every other is ended."""
        record = claim(self._api, self._file, pods, self._pace)
        made = [attempt for attempt in record.open if attempt.state == "made"]
        for attempt in record.open:
            if attempt.pod is not None and attempt not in made[-1:]:
                end_pod(self._api, self._file, attempt, self._pace, "client", "one pod is enough")
        return made[-1] if made else None

    def _refused(self, attempt: Attempt, gpu: str, error: RunpodError) -> Attempt | None:
        """Record a refusal. A pod all the same, where a server that failed made one; None when there is none.

        Raises:
            RunpodError: no other type would fare better.
        """
        if isinstance(error, NoStock) and (error.status or 0) >= 500:
            pods = look(self._api, self._wants.run, [], self._pace)
            if attempt.name in {pod.name for pod in pods}:
                return self._adopt(pods)
        change(self._file, attempt, state="refused", refusal=error.message, spent_usd=0.0)
        self._refusals[gpu] = error
        if isinstance(error, Unreachable) and self._tries[gpu] < MOST_TRIES:
            self._pace.poll()
            return None
        rejected = sum(isinstance(each, Rejected) for each in self._refusals.values())
        here_only = error.status == 403 if isinstance(error, BadKey) else error.status == 400
        if isinstance(error, NoStock) or (
            isinstance(error, BadKey | Rejected) and here_only and rejected < MOST_REJECTED
        ):
            self._tell.notice(f"{gpu} is not to be had: {error.message}")
            return None
        raise error

    def _accept(self, gpu: str, attempt: Attempt) -> Attempt | None:
        accepted = accept(self._api, self._file, attempt, self._wants, self._pace, self._tell)
        if accepted is None:
            ended = next(each for each in self._file.load().attempts if each.pod == attempt.pod)
            self._dear[gpu] = ended.reason or ""
        return accepted

    def _failed(self) -> RunpodError:
        """The error for a search without a pod."""
        tried = {gpu: error.message for gpu, error in self._refusals.items()} | self._dear
        kinds = {type(error) for error in self._refusals.values()}
        if not self._dear and kinds in ({BadKey}, {Rejected}):
            return list(self._refusals.values())[-1]
        told = "; ".join(f"{gpu}: {why}" for gpu, why in tried.items())
        record = self._file.load()
        late = [attempt.name for attempt in record.open if attempt.pod is None]
        details: dict[str, object] = {
            "tried": [{"gpu": gpu, "why": why} for gpu, why in tried.items()],
            "passed_over": [{"gpu": each.gpu, "why": each.why} for each in self._choice.passed],
            "spent_usd": record.spent_usd,
        }
        kind = PriceAbove if self._dear else NoCapacity
        what = "every pod that was to be had costs too much" if self._dear else "no capacity"
        return kind(
            f"{what}: {told}",
            safe="nothing was trained, and no pod is left" if not late else "nothing was trained",
            cost=f"{', '.join(late)}, if it still comes to be; it ends itself when no client is heard" if late else "",
            next="raise max_price_per_hour, or choose other gpu_types"
            if self._dear
            else 'try later, or allow more: other gpu_types (or "auto"), cloud, data_center_ids, max_price_per_hour',
            details=details,
        )
