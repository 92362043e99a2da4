"""What people do after a client was killed. Each ends with the killed call repeated until it has done its work."""

from __future__ import annotations

from collections.abc import Callable

from tests.matrix.rig import FEW, FIRST, MORE, Rented, Said, call

AGAIN = ("train", "b.jsonl", "--key", "b")
OTHER = ("train", "c.jsonl", "--key", "c")
ROWS = {"k0": FIRST, "b": MORE}
"""Rows that each key has in the end."""

Follow = Callable[[Rented], list[Said]]


def until_done(project: Rented, *, apart: bool = False) -> list[Said]:
    """The killed call again; once more when it tells that what was on the run's pod is lost, and as often as it takes
    while the provider does not answer."""
    said = [call(project, *AGAIN, apart=apart)]
    while said[-1].code and len(said) < 10 and (len(said) == 1 or "no answer from" in said[-1].err):
        said.append(call(project, *AGAIN))
    return said


def attach(project: Rented) -> list[Said]:
    """Follow the run again, if it got as far as being one; then the same command, which must be answered."""
    back = [call(project, "train", "attach", "last")] if project.runs() else []
    return [*back, *until_done(project)]


def same(project: Rented) -> list[Said]:
    """The same command again, from a process of its own."""
    return until_done(project, apart=True)


def other(project: Rented) -> list[Said]:
    """Another trace of the same lineage first."""
    return [call(project, *OTHER), *until_done(project)]


def rm(project: Rented) -> list[Said]:
    """End whatever the run rented, then the same command."""
    return [call(project, "pod", "rm", "last"), *until_done(project)]


def reap(project: Rented) -> list[Said]:
    """What cron does, when the pod should have ended itself and did not; then the same command."""
    project.sandbox.advance(3600 + 150)
    return [call(project, "pod", "reap"), *until_done(project)]


def mended(project: Rented) -> list[Said]:
    """Follow the run again while the bucket refuses, and once more when somebody has mended that."""
    refused = call(project, "train", "attach", "last")
    unblock(project)
    return [refused, *attach(project)]


def block(project: Rented) -> None:
    """The bucket can neither be read nor written."""
    (project.path / "checkpoints").rename(project.path / "elsewhere")
    (project.path / "checkpoints").write_text("in the way")


def unblock(project: Rented) -> None:
    """It can again."""
    (project.path / "checkpoints").unlink()
    (project.path / "elsewhere").rename(project.path / "checkpoints")


FOLLOWS: dict[str, Follow] = {"attach": attach, "same": same, "other": other, "rm": rm, "reap": reap}
"""What follows anywhere."""

ALL_FOLLOWS = FOLLOWS | {"mended": mended}


def codes_of(follow: str) -> tuple[int, ...]:
    """What commands before the last one may exit with: a pod that was ended by hand had unfetched work on it."""
    return (1,) if follow in ("rm", "reap") else ()


def rows_of(follow: str) -> dict[str, int]:
    """Rows that each key has in the end."""
    return ROWS | ({"c": FEW} if follow == "other" else {})
