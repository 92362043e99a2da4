"""Ending pods on demand: ``stepctl pod rm``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError, UsageError
from stepctl.calls.account import Account, Named, account, named
from stepctl.calls.away import blame_pods, in_words
from stepctl.calls.receipts import note
from stepctl.calls.world import World
from stepctl.runs.pods import PodFile
from stepctl.runs.record import UNFINISHED
from stepctl.targets.runpod.end import end_all, end_pod, pod_alive, unrecorded
from stepctl.targets.runpod.errors import PodAlive, RunpodError
from stepctl.targets.runpod.keys import forget_keys
from stepctl.targets.runpod.sweep import Rented, Sweep, end_rented, sweep

_WHY = "stepctl pod rm"
_NOT_LISTED = "no list shows it yet; it ends itself when no client is heard"


def rm(world: World, target: str | None, word: str) -> dict[str, Any]:
    """As :func:`remove`, with the account of ``target``, else of what ``word`` names.

    Raises:
        PodAlive: whatever went wrong, also a Ctrl-C or a key that is missing, while a pod of that name may be alive.
        StepctlError: the record of the run's pods cannot be read; exit code 8 too.
        UsageError: nothing of that name.
    """
    with _telling_what_lives(world, word), account(world, target, word) as asked:
        return remove(world, asked, word)


@contextmanager
def _telling_what_lives(world: World, word: str) -> Iterator[None]:
    try:
        yield
    except PodAlive:
        raise
    except (Exception, KeyboardInterrupt) as error:
        said = _what_lives(world, word, error)
        if said is None or said is error:
            raise
        raise said from error


def _what_lives(world: World, word: str, error: Exception | KeyboardInterrupt) -> StepctlError | None:
    """The error that names the pods that may be alive in spite of ``word``'s end; None when none is known."""
    try:
        about = named(world, word)
        file = PodFile(world.store.folder(about.run)) if about else None
        if about is None or file is None or not file.exists():
            return None
    except StepctlError:
        return None
    if isinstance(error, KeyboardInterrupt):
        known = StepctlError("interrupted", code="interrupted")
    else:
        known = error if isinstance(error, StepctlError) else in_words(error)
    try:
        left = [each for each in file.load().open if about.pod is None or each.name == about.pod.name]
    except StepctlError:
        blame_pods(known, world.store, about.run)
        return known
    if not left:
        return None
    alive = pod_alive(about.run, left, known.message)
    again = f"stepctl pod rm {about.pod.pod or about.run if about.pod else about.run}"
    alive.next = f"{known.next}; then: {again}" if known.next else again
    if known.code == "bug":
        alive.code = known.code
    return alive


def remove(world: World, account: Account, word: str) -> dict[str, Any]:
    """End the pods of a run, or one pod by its id or name, and wait until that is confirmed.

    Returns:
        The receipts that are known here.

    Raises:
        PodAlive: it is not confirmed, or a create without an answer may still become a pod.
        RunpodError: the list of pods cannot be had, and no open pod of that name is known here.
        UsageError: nothing of that name.
    """
    try:
        found = sweep(account.api, world.store, account.pace, secrets=False)
    except RunpodError as error:
        done = _end_recorded(world, account, named(world, word))
        if done is None:
            raise error
        return done
    chosen = [each for each in found.pods if word in (each.pod.id, each.pod.name)]
    if chosen:
        return end_each(world, account, chosen, "client", _WHY, again=f"stepctl pod rm {chosen[0].pod.id}")
    about = named(world, word)
    done = _end_recorded(world, account, about) if about and about.pod else None
    if done is not None:
        return done
    run = _run_of(world, found, word)
    file = PodFile(world.store.folder(run))
    listed = [each for each in found.pods if each.run == run]
    again = f"stepctl pod rm {run}"
    if not file.exists():
        return end_each(world, account, listed, "client", _WHY, again=again)
    try:
        file.load()
    except StepctlError as error:
        # What the list shows is ended all the same.
        end_each(world, account, listed, "client", _WHY, again=again)
        error.safe = f"gone: pod {', '.join(each.pod.id for each in listed)}" if listed else ""
        raise
    return _end_run(world, account, run)


def _end_run(world: World, account: Account, run: str) -> dict[str, Any]:
    record = end_all(account.api, PodFile(world.store.folder(run)), account.pace, "client", _WHY)
    note(world, run)
    if record.open:
        raise pod_alive(run, record.open, _NOT_LISTED)
    return {"ended": [msgspec.to_builtins(each) for each in record.attempts if each.state == "gone"]}


def _end_recorded(world: World, account: Account, about: Named | None) -> dict[str, Any] | None:
    """End what only a record here tells of; None when that has nothing open."""
    file = PodFile(world.store.folder(about.run)) if about else None
    if about is None or file is None or not file.exists() or not (left := file.load().open):
        return None
    if about.pod is None:
        return _end_run(world, account, about.run)
    attempt = next((each for each in left if each.name == about.pod.name), None)
    if attempt is None:
        return None
    if attempt.pod is None:
        raise pod_alive(about.run, [attempt], _NOT_LISTED)
    gone = end_pod(account.api, file, attempt, account.pace, "client", _WHY)
    note(world, about.run)
    _forget_keys(world, account, about.run)
    return {"ended": [msgspec.to_builtins(gone)]}


def _run_of(world: World, found: Sweep, word: str) -> str:
    """A run of the store, or one that only its pods tell of."""
    away = sorted({each.run for each in found.pods if each.run.startswith(word)})
    try:
        return world.store.find(word)
    except UsageError:
        if len(away) == 1:
            return away[0]
        raise UsageError(
            f"neither a run nor a pod of ours is called {word!r}", next="stepctl pod ls", code="no_such_pod"
        ) from None


def end_each(world: World, account: Account, chosen: list[Rented], by: str, why: str, *, again: str) -> dict[str, Any]:
    """End some pods; each is tried, whatever becomes of the others.

    Args:
        again: what to type when a Ctrl-C cuts it short.

    Raises:
        PodAlive: one could not be ended for certain, or a Ctrl-C came before all were.
        StepctlError, OSError: a record cannot be read or written.
    """
    left = list(chosen)
    ended: list[dict[str, Any]] = []
    failed: list[StepctlError | OSError] = []
    try:
        for each in chosen:
            try:
                attempt = end_rented(account.api, world.store, each, account.pace, by, why)
                left.remove(each)
                receipt = {"pod": each.pod.id, "name": each.pod.name, "state": "gone", "spent_usd": each.spent_usd}
                ended.append(msgspec.to_builtins(attempt) if attempt else receipt)
                note(world, each.run)
                _forget_keys(world, account, each.run)
            except (StepctlError, OSError) as error:
                failed.append(error)
    except KeyboardInterrupt as error:
        if not left:
            raise
        alive = pod_alive(left[0].run, [each.attempt or unrecorded(each.pod) for each in left], "interrupted")
        alive.next = again
        raise alive from error
    # A pod that may be alive comes before a record that could not be written.
    failed.sort(key=lambda error: not isinstance(error, PodAlive))
    for other in failed[1:]:
        world.listener.notice(f"warning: {other}")
    if failed:
        raise failed[0]
    return {"ended": ended}


def _forget_keys(world: World, account: Account, run: str) -> None:
    """The keys of a run that has ended go with its last pod; one that has not may still make another pod with them."""
    file = PodFile(world.store.folder(run))
    if run not in world.store.names() or not file.exists():
        return
    try:
        left = file.load().open
    except StepctlError:  # nothing tells which keys those are
        return
    if not left and world.store.load(run).state not in UNFINISHED:
        forget_keys(account.api, file)
