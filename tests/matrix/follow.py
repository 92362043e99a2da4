"""What people do after a client was killed. Each ends with the killed call repeated until it has done its work."""

from __future__ import annotations

from collections.abc import Callable

from tests.matrix.rig import FEW, FIRST, MORE, TARGET, Rented, Said, call

AGAIN = ("train", "b.jsonl", "--key", "b", "--target", TARGET)
OTHER = ("train", "c.jsonl", "--key", "c", "--target", TARGET)
ROWS = {"k0": FIRST, "b": MORE}
"""Rows that each key has in the end."""

Follow = Callable[[Rented], list[Said]]


def attach(project: Rented) -> list[Said]:
    """Follow the run again; then the same command, which must be answered."""
    return [call(project, "train", "attach", "last"), call(project, *AGAIN)]


def same(project: Rented) -> list[Said]:
    """The same command again, from a process of its own."""
    return [call(project, *AGAIN, apart=True)]


def other(project: Rented) -> list[Said]:
    """Another trace of the same lineage first."""
    return [call(project, *OTHER), call(project, *AGAIN)]


def rm(project: Rented) -> list[Said]:
    """End whatever the run rented, then the same command."""
    return [call(project, "pod", "rm", "last", "--target", TARGET), call(project, *AGAIN)]


def reap(project: Rented) -> list[Said]:
    """What cron does, when the pod should have ended itself and did not; then the same command."""
    project.rig.sandbox.advance(3600 + 150)
    return [call(project, "pod", "reap", "--target", TARGET), call(project, *AGAIN)]


FOLLOWS: dict[str, Follow] = {"attach": attach, "same": same, "other": other, "rm": rm, "reap": reap}


def rows_of(follow: str) -> dict[str, int]:
    """Rows that each key has in the end."""
    return ROWS | ({"c": FEW} if follow == "other" else {})
