"""What is rented, and ending it: the commands of ``stepctl pod``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from stepctl.base.errors import StepctlError, UsageError
from stepctl.calls.away import recorded_target, with_pods
from stepctl.calls.reporting import exit_code as exit_of
from stepctl.calls.spending import open_api
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget
from stepctl.runs.pods import Attempt, PodFile
from stepctl.runs.record import UNFINISHED, RunRecord
from stepctl.runs.report import Report
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.end import end_all, pod_alive
from stepctl.targets.runpod.errors import PodAlive, RunpodError
from stepctl.targets.runpod.keys import forget_keys
from stepctl.targets.runpod.logs import TAIL
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.sweep import Rented, Sweep, end_rented, sweep


@dataclass(frozen=True)
class Account:
    """The provider's account of one target."""

    name: str
    options: RunpodTarget
    api: Api
    pace: Pace


@contextmanager
def account(world: World, target: str | None, about: str | None = None) -> Iterator[Account]:
    """The account of ``target``, else of what is asked about, else of the settings' target, else of the only one that
    rents pods.

    Args:
        about: a run, or a pod by its id or name: its run's target as it was recorded.

    Raises:
        UsageError: there is none, several, or no key.
    """
    name, options = (target is None and _recorded(world, about)) or _chosen(world, target)
    api = open_api(options)
    try:
        yield Account(name, options, api, Pace(options.poll_seconds, sleep=world.wait, now=world.now))
    finally:
        api.close()


def _recorded(world: World, word: str | None) -> tuple[str, RunpodTarget] | None:
    run = _run_about(world, word) if word else None
    try:
        record = world.store.load(run) if run else None
    except StepctlError:
        return None
    options = recorded_target(record) if record is not None else None
    return (record.target, options) if record is not None and isinstance(options, RunpodTarget) else None


def _run_about(world: World, word: str) -> str | None:
    """The run here that a run's or a pod's name means."""
    try:
        return world.store.find(word)
    except UsageError:
        pass
    for run in world.store.names():
        try:
            file = PodFile(world.store.folder(run))
            attempts = file.load().attempts if file.exists() else []
        except StepctlError:
            continue
        if any(word in (each.pod, each.name) and each.state != "handed" for each in attempts):
            return run
    return None


def _chosen(world: World, target: str | None) -> tuple[str, RunpodTarget]:
    settings = world.loaded.settings
    rented = {name: each for name, each in settings.targets.items() if isinstance(each, RunpodTarget)}
    name = target or (settings.target if settings.target in rented else None)
    if name is None and len(rented) > 1:
        raise UsageError(f"several targets rent pods: {', '.join(rented)}", next="name one: --target NAME")
    name = name or next(iter(rented), "runpod")
    if target is not None and target not in rented:
        raise UsageError(f"there is no target {target!r} of kind runpod", next="name one of stepctl.toml")
    return name, rented.get(name, RunpodTarget(max_hours=1))


def state_of(world: World, rented: Rented) -> str:
    """One word for what a pod is to us."""
    if rented.stray:
        return "stray"
    if rented.attempt is None or rented.attempt.state in ("kept", "ending"):
        return rented.attempt.state if rented.attempt else "unresolved"
    try:
        record = world.store.load(rented.run)
    except StepctlError:
        return "stray"
    return rented.attempt.state if record.state in UNFINISHED else "left"


def look(world: World, account: Account) -> Sweep:
    """All pods of the account that are ours; records of pods that have ended meanwhile are brought up to date.

    Raises:
        RunpodError: the provider cannot be asked.
    """
    found = sweep(account.api, world.store, account.pace)
    living = {each.pod.id for each in found.pods}
    for name in world.store.names():
        _close_kept(world, account, name, living)
    return found


def _close_kept(world: World, account: Account, run: str, living: set[str]) -> None:
    """A kept pod that nobody took has ended itself: its record gets its receipt."""
    file = PodFile(world.store.folder(run))
    try:
        kept = [each for each in file.load().open if each.state == "kept"] if file.exists() else []
        if kept and _is_of(account, file) and not any(_lives(account, each, living) for each in kept):
            end_all(account.api, file, account.pace, "client", "nobody took it in its time", already="pod")
            _note(world, run)
    except (StepctlError, OSError):
        return


def _is_of(account: Account, file: PodFile) -> bool:
    """Whether the account can tell of a run's pods."""
    record = file.load()
    return record.account == account.api.account or (record.account is None and record.target == account.name)


def _lives(account: Account, attempt: Attempt, living: set[str]) -> bool:
    """One list without it is no proof."""
    if attempt.pod is None or attempt.pod in living:
        return True
    pod = account.api.pod(attempt.pod)
    return pod is not None and not pod.ended


def rows(world: World, found: Sweep) -> list[dict[str, Any]]:
    """For ``--json`` and the table."""
    return [
        {
            "pod": each.pod.id,
            "name": each.pod.name,
            "run": each.run,
            "state": state_of(world, each),
            "status": each.pod.status,
            "gpu": f"{each.pod.gpu.count} x {each.pod.gpu.id}" if each.pod.gpu else None,
            "age_sec": each.age,
            "price_per_hour": each.price,
            "spent_usd": each.spent_usd,
            "ends_at": each.deadline.isoformat() if each.deadline else None,
            "past_deadline": each.past_deadline,
            "stray": each.stray,
            "kept_until": each.attempt.kept_until if each.attempt else None,
        }
        for each in found.pods
    ]


def remove(world: World, account: Account, word: str) -> dict[str, Any]:
    """End the pods of a run, or one pod by its id or name, and wait until that is confirmed.

    Returns:
        The receipts that are known here.

    Raises:
        PodAlive: it is not confirmed, or a create without an answer may still become a pod.
        UsageError: nothing of that name.
    """
    found = sweep(account.api, world.store, account.pace, secrets=False)
    chosen = [each for each in found.pods if word in (each.pod.id, each.pod.name)]
    if chosen:
        return _end_each(world, account, chosen, "client", "stepctl pod rm")
    run = _run_of(world, found, word)
    file = PodFile(world.store.folder(run))
    if file.exists():
        record = end_all(account.api, file, account.pace, "client", "stepctl pod rm")
        _note(world, run)
        if record.open:
            raise pod_alive(run, record.open, "no list shows it yet; it ends itself when no client is heard")
        return {"ended": [msgspec.to_builtins(each) for each in record.attempts if each.state == "gone"]}
    return _end_each(world, account, [each for each in found.pods if each.run == run], "client", "stepctl pod rm")


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


def _end_each(world: World, account: Account, chosen: list[Rented], by: str, why: str) -> dict[str, Any]:
    ended: list[dict[str, Any]] = []
    failed: list[StepctlError | OSError] = []
    for each in chosen:
        try:
            attempt = end_rented(account.api, world.store, each, account.pace, by, why)
            receipt = {"pod": each.pod.id, "name": each.pod.name, "state": "gone", "spent_usd": each.spent_usd}
            ended.append(msgspec.to_builtins(attempt) if attempt else receipt)
            _note(world, each.run)
            _forget_keys(world, account, each.run)
        except (StepctlError, OSError) as error:
            failed.append(error)
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
    if run not in world.store.names() or not file.exists() or file.load().open:
        return
    if world.store.load(run).state not in UNFINISHED:
        forget_keys(account.api, file)


def _note(world: World, run: str) -> None:
    """The report of a run that has ended says what its pods are now."""

    def change(record: RunRecord) -> None:
        if record.report is not None:
            report = with_pods(msgspec.convert(record.report, Report), world.store, run)
            report.exit_code = exit_of(report)
            data: dict[str, Any] = msgspec.to_builtins(report)
            record.report = data

    if run in world.store.names():
        world.store.update(run, change)


def reap(world: World, account: Account, *, dry_run: bool) -> dict[str, Any]:
    """End pods of ours, of whatever machine, that are past their own deadline; delete leftover secrets.

    Raises:
        PodAlive: one could not be ended for certain; the others were tried.
        StepctlError, OSError: a record cannot be read or written; the others were tried.
    """
    found = sweep(account.api, world.store, account.pace)
    late = [each for each in found.pods if each.past_deadline]
    secrets = [secret.name for secret in found.secrets]
    left = [each for each in rows(world, found) if not each["past_deadline"]]
    if dry_run:
        return {"ended": [], "would_end": [each.pod.id for each in late], "secrets": secrets, "left": left}
    for name in secrets:
        try:
            account.api.delete_secret(name)
        except RunpodError as error:
            world.listener.notice(f"warning: {error.message}")
    done = _end_each(world, account, late, "reaper", "it was past its deadline")
    return {**done, "would_end": [], "secrets": secrets, "left": left}


def log_lines(world: World, account: Account, word: str, tail: int) -> list[str]:
    """The container's log of a run's newest pod, or of one pod: live, else as it was captured.

    Raises:
        UsageError: nothing of that name.
    """
    file = None
    pod = word
    try:
        file = PodFile(world.store.folder(world.store.find(word)))
        current = file.load().current if file.exists() else None
        pod = (current.pod or "") if current else ""
    except UsageError:
        pass
    lines: list[str] = []
    if pod:
        try:
            lines = [line.line for line in account.api.logs(pod, "container", min(tail, TAIL), seconds=10.0)]
        except RunpodError as error:
            if file is None:
                raise
            world.listener.notice(f"not live: {error.message}")
    if not lines and file is not None and file.log.exists():
        lines = file.log.read_text(errors="replace").splitlines()[-tail:]
    return lines


def ssh_command(world: World, run: str) -> list[str]:
    """The words of an ssh command that opens a shell on a run's pod, with its key and its pinned host key.

    Nothing of ~/.ssh/config counts, as when stepctl itself logs in: a proxy or a shared connection of the user's own
    would lead elsewhere.

    Raises:
        UsageError: the run has no living pod, or its key is not here.
    """
    name = world.store.find(run)
    file = PodFile(world.store.folder(name))
    attempt = file.load().current if file.exists() else None
    if attempt is None or attempt.ssh_host is None or not file.client_key.exists():
        raise UsageError(f"run {name} has no pod that can be reached", next="stepctl pod ls", code="no_such_pod")
    options = (
        f"UserKnownHostsFile={file.known_hosts}",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "GlobalKnownHostsFile=/dev/null",
    )
    words = ["ssh", "-F", "none", "-i", str(file.client_key), "-p", str(attempt.ssh_port)]
    return [*words, *(part for option in options for part in ("-o", option)), f"root@{attempt.ssh_host}"]
