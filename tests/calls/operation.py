"""What an operation is, where one is possible, and what several are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.calls.history import History
from tests.calls.projects import BEFORE_STEPS, Call, Live, Project, points
from tests.calls.rules import Ask, Run
from tests.doubles.forked import outcome

from stepctl.calls.attach import attach
from stepctl.calls.restart import restart
from stepctl.runs.report import Report

KINDS = ("new key", "new", "same key", "same", "continue", "fresh key", "fresh", "known key")


class Draw(NamedTuple):
    """What an operation is given; ``pick`` and ``number`` are taken modulo what there is.

    ``writes`` says before which write a process is killed.
    """

    at: int
    kind: str
    rows: int
    group: int
    keep: int
    every_step: bool
    flag: bool
    pick: int
    number: int
    writes: int


Act = Callable[[History, Project, Draw], None]
On = Callable[[History], Sequence[Project]]


@dataclass(frozen=True)
class Operation:
    """``on`` are the projects on which it is possible now."""

    name: str
    on: On
    act: Act
    weight: int


OPERATIONS: dict[str, Operation] = {}


def operation(on: On, weight: int = 1) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        name = act.__name__.replace("_", " ")
        OPERATIONS[name] = Operation(name, on, act, weight)
        return act

    return register


# --- where an operation is possible ---------------------------------------------------------------------------------


def free(h: History) -> list[Project]:
    """Without a job; and nobody holds the bucket's lock."""
    return [] if h.locked else [project for project in h.projects if project.live is None]


def both_free(h: History) -> list[Project]:
    return free(h) if len(free(h)) == 2 else []


def held(h: History) -> list[Project]:
    """With a job that is held and can go on: no other holds the bucket's lock."""
    found = [project for project in h.projects if project.live is not None]
    return [p for p in found if not any(o.live and o.live.locked for o in found if o is not p)]


def followed(h: History) -> list[Project]:
    return [project for project in held(h) if project.live and project.live.followed]


def keyed(h: History) -> list[Project]:
    return [project for project in held(h) if project.live and project.live.run.key is not None]


def committing(h: History) -> list[Project]:
    phases = ("saving", "files_stored", "manifest_stored")
    return [project for project in held(h) if project.live and project.live.at.startswith(phases)]


def stored(h: History) -> list[Project]:
    """Any, once there are checkpoints and the bucket is not locked."""
    return h.projects if h.rules.alive and not h.locked else []


def saving(h: History) -> list[Project]:
    return [project for project in committing(h) if job_of(project).at.startswith("saving")]


def attachable(h: History) -> list[Project]:
    return [project for project in free(h) if project.runs]


def job_of(project: Project) -> Live:
    assert project.live is not None
    return project.live


def make_call(h: History, draw: Draw, kind: str | None = None) -> Call:
    """A call of a kind, on a trace or key that was used before where the kind says so and there is one."""
    kind = kind or draw.kind
    known = [run for project in h.projects for run in project.runs.values()]
    path = h.rules.ancestry(h.rules.head)
    half = [node.run for node in path[-3:] if not (h.rules.newest(node.run) or node).whole]
    if half and draw.pick % 4:
        known = half
    with_key = [run for run in known if run.key is not None]
    run = known[-1 - draw.pick % min(len(known), 6)] if known else None
    other = with_key[-1 - draw.number % min(len(with_key), 4)] if with_key else None
    ask = None
    if kind == "same key" and other:
        ask = Ask(other.ask.trace, key=other.key)
    elif kind == "known key" and other and run:
        ask = Ask(h.traces[draw.pick % len(h.traces)], key=other.key)
    elif kind in ("same", "continue") and run:
        ask = Ask(run.ask.trace, go_on=kind == "continue")
    elif kind == "fresh key" and other and draw.flag:
        ask = Ask(other.ask.trace, key=other.key, fresh=True)
    elif kind == "fresh" and run and draw.flag:
        ask = Ask(run.ask.trace, fresh=True)
    if ask is None:
        key = h.new_key() if kind.endswith("key") else None
        ask = Ask(h.new_trace(draw.rows), key=key, fresh=kind.startswith("fresh"))
    return Call(ask, draw.group, draw.keep, draw.every_step)


# --- attaching ------------------------------------------------------------------------------------------------------


def settle(h: History, project: Project) -> None:
    """Attach to everything that nobody has looked at."""
    for run in sorted(project.open, key=lambda run: run.name):
        attach_to(h, project, run)


def attach_to(h: History, project: Project, run: Run) -> None:
    """As the command does: a run that never got its examples is started again."""
    states = h.foresee_settling(project, only=run)
    world = h.world(project)
    found = outcome(lambda: attach(world, run.name))
    assert isinstance(found, Report), found
    h.check_settled(project, states)
    record = project.record(run.name)
    if run.name in states:
        assert found.state in states[run.name]
    if record["report"] is not None:
        assert found.exit_code == record["report"]["exit_code"]
        assert found.checkpoint == record["report"]["checkpoint"]
    if found.state == "needs_trace":
        start_again(h, project, run)
    h.check()


def start_again(h: History, project: Project, run: Run) -> None:
    world = h.world(project)
    again = Ask(run.ask.trace, run.key, run.key is None and run.rows_start > 0, run.new_root, run.ask.expect)
    call = Call(again, run.group, run.keep, run.every_step)
    states = h.foresee_settling(project)
    decision = h.rules.decide(again)
    found = outcome(lambda: restart(world, world.store.load(run.name)))
    h.check_settled(project, states)
    if decision.refused or decision.replay:
        h.check_answer(found, call, decision)
        return
    new = h.meet(project, call, decision, run.name)
    h.adopt(new)
    assert isinstance(found, Report), found
    h.ended(project, new, found, new.last)
    h.seen["started again"] += 1


def point_of(run: Run, number: int) -> str:
    """One of the events of a run's job; mostly one after its first step."""
    names = points(run)
    late = names[len(BEFORE_STEPS) :]
    return late[number // 4 % len(late)] if number % 4 else names[number // 4 % len(names)]
