"""What is rented, and what is past its time: the commands of ``stepctl pod``, but for ``pod rm``."""

from __future__ import annotations

from typing import Any

from stepctl.base.errors import StepctlError, UsageError
from stepctl.calls.account import Account
from stepctl.calls.receipts import close_kept
from stepctl.calls.removing import end_each
from stepctl.calls.world import World
from stepctl.runs.pods import PodFile
from stepctl.runs.record import UNFINISHED
from stepctl.targets.runpod.errors import RunpodError
from stepctl.targets.runpod.logs import TAIL
from stepctl.targets.runpod.sweep import Rented, Sweep, sweep


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
    _close_all_kept(world, account, found)
    return found


def _close_all_kept(world: World, account: Account, found: Sweep) -> None:
    living = {each.pod.id for each in found.pods}
    for name in world.store.names():
        close_kept(world, account, name, living)


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


def reap(world: World, account: Account, *, dry_run: bool) -> dict[str, Any]:
    """End pods of ours, of whatever machine, that are past their own deadline; delete leftover secrets; give kept
    pods of runs here that have ended meanwhile their receipt.

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
    _close_all_kept(world, account, found)
    for name in secrets:
        try:
            account.api.delete_secret(name)
        except RunpodError as error:
            world.listener.notice(f"warning: {error.message}")
    done = end_each(world, account, late, "reaper", "it was past its deadline", again="stepctl pod reap")
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
