"""Complete checkpoints beside the head's path."""

from __future__ import annotations

from msgspec import Struct

from stepctl.lineage.view import View


class Fork(Struct, kw_only=True):
    """One complete checkpoint that is not on the head's path; ``stepctl lineage use`` makes it the head.

    ``leaves`` is its nearest ancestor on the path (null: it started at another root) and ``leaves_step`` that one's
    step; ``steps`` were trained since, by ``runs``. ``bytes`` are those of its files; ``problem`` says why it cannot
    be used, as far as that shows without reading them.
    """

    checkpoint: str
    step: int
    run: str
    key: str | None
    loss: float | None
    created_at: str
    leaves: str | None
    leaves_step: int
    steps: int
    runs: list[str]
    bytes: int
    problem: str | None


class Forks(Struct, kw_only=True):
    """The forks of a lineage, by where they leave the path of ``head`` (null: there is none).

    With a ``problem`` the head is damaged, or not known for sure.
    """

    lineage: str
    bucket: str
    head: str | None
    problem: str | None
    forks: list[Fork]


def forks(view: View) -> list[Fork]:
    """All of a lineage, by where they leave the path and then by name."""
    path = set(view.path)
    found = [_fork(view, name, path) for name in view.tree.complete if name not in path]
    return sorted(found, key=lambda fork: (fork.leaves_step, fork.leaves or "", fork.checkpoint))


def _fork(view: View, name: str, path: set[str]) -> Fork:
    manifest = view.tree.complete[name]
    beside, leaves = [], None
    for each in view.tree.ancestry(name):
        if each in path:
            leaves = each
            break
        beside.append(each)
    leaves_step = view.tree.nodes[leaves].step if leaves else 0
    runs = dict.fromkeys(view.lines[each].run for each in reversed(beside) if each in view.lines)
    return Fork(
        checkpoint=name,
        step=manifest.step,
        run=manifest.run,
        key=manifest.key,
        loss=manifest.loss,
        created_at=manifest.created_at,
        leaves=leaves,
        leaves_step=leaves_step,
        steps=manifest.step - leaves_step,
        runs=list(runs),
        bytes=view.bytes_of(name),
        problem=view.problem_of(name),
    )
