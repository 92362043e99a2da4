"""The provider's account that a command asks, and what of the run store a word names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stepctl.base.errors import StepctlError, UsageError
from stepctl.calls.away import recorded_target
from stepctl.calls.spending import open_api
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget
from stepctl.runs.pods import Attempt, PodFile
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.pace import Pace


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
    about = named(world, word) if word else None
    try:
        record = world.store.load(about.run) if about else None
    except StepctlError:
        return None
    options = recorded_target(record) if record is not None else None
    return (record.target, options) if record is not None and isinstance(options, RunpodTarget) else None


@dataclass(frozen=True)
class Named:
    """What a word names of the run store: a run, or one pod of it.

    Attributes:
        run: its id.
        pod: None where the run is meant as a whole.
    """

    run: str
    pod: Attempt | None = None


def named(world: World, word: str) -> Named | None:
    """The run or the pod here of that name; a pod that changed hands is the last one's."""
    try:
        return Named(world.store.find(word))
    except UsageError:
        pass
    found = []
    for run in world.store.names():
        try:
            file = PodFile(world.store.folder(run))
            attempts = file.load().attempts if file.exists() else []
        except StepctlError:
            continue
        found += [Named(run, each) for each in attempts if word in (each.pod, each.name) and each.state != "handed"]
    return max(found, key=lambda each: (each.pod and each.pod.billed_from) or "", default=None)


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
