"""Choices, deletions, and calls that nobody holds: whole ones, and those in which processes die."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta

from tests.calls.history import History
from tests.calls.operation import Draw, free, make_call, operation, point_of, settle, stored
from tests.calls.projects import Call, Project, kept_at
from tests.doubles.forked import Client, Refusal, hold

from stepctl.base.names import utc_now
from stepctl.lineage.store import choose, clean_leftovers, prune
from stepctl.runs.report import Report

# --- choices and deletions ------------------------------------------------------------------------------------------


@operation(stored)
def roll_back(h: History, project: Project, draw: Draw) -> None:
    """To a kept checkpoint of the head's path."""
    kept = [node.name for node in h.rules.ancestry(h.rules.head) if node.name in h.rules.alive]
    if kept:
        _choose(h, kept[-1 - draw.pick % len(kept)], "rollback")


@operation(stored)
def use_any_checkpoint(h: History, project: Project, draw: Draw) -> None:
    """Forks and what was left behind too."""
    names = [name for name in h.rules.nodes if name in h.rules.alive]
    _choose(h, names[-1 - draw.pick % len(names)], "use")


def _choose(h: History, name: str, reason: str) -> None:
    same = name == h.rules.head
    assert (choose(h.bucket, "main", name, reason) is None) == same
    h.rules.choose(name)
    h.seen[reason] += not same
    h.check()


@operation(stored)
def prune_the_path(h: History, project: Project, draw: Draw) -> None:
    h.gone = h.rules.doomed(draw.keep)
    assert set(prune(h.bucket, "main", draw.keep)) >= h.gone
    h.check()


@operation(stored)
def kill_while_pruning(h: History, project: Project, draw: Draw) -> None:
    h.calls += 1
    keep = draw.keep % 2 + 1
    h.gone = h.rules.doomed(keep)
    work, answer = lambda: prune(h.bucket, "main", keep), h.base / f"answer{h.calls}"
    client = Client(work, answer, die=draw.writes % 20)
    client.wait()
    client.all_ended()
    h.check(exact=False)


@operation(stored)
def a_week_later(h: History, project: Project, draw: Draw) -> None:
    """What interrupted commits left is removed; nothing else is."""
    clean_leftovers(h.bucket, "main", "nobody", utc_now() + timedelta(days=8))
    h.check()
    assert not list((h.place / "main").rglob(".tmp-*"))
    assert {path.name for path in (h.place / "main" / "checkpoints").iterdir()} == h.rules.alive


@operation(stored)
def lose_the_times(h: History, project: Project, draw: Draw) -> None:
    """As after a copy of the bucket, or with a clock that was set back: the claims know which child came first."""
    now = time.time_ns()
    for number, name in enumerate(h.rules.nodes):
        if name in h.rules.alive:
            path, when = h.place / "main" / "checkpoints" / name / "manifest.json", now - number * 1_000_000
            os.utime(path, ns=(when, when))
    h.check()


# --- calls from begin to end ----------------------------------------------------------------------------------------


def call_once(h: History, project: Project, call: Call) -> None:
    states = h.foresee_settling(project)
    decision = h.rules.decide(call.ask)
    found = h.train(project, call)
    h.check_settled(project, states)
    if decision.refused or decision.replay:
        h.check_answer(found, call, decision)
    else:
        run = h.meet(project, call, decision)
        assert isinstance(found, Report), found
        h.adopt(run)
        h.ended(project, run, found, run.last)
    h.check()


@operation(free, 2)
def train_with_a_new_key(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "new key"))


@operation(free)
def train_without_a_key(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "new"))


@operation(free, 2)
def train_the_same_under_its_key(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "same key"))


@operation(free, 2)
def train_the_same_without_a_key(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "same"))


@operation(free, 2)
def go_on_with_a_trace(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "continue"))


@operation(free)
def use_a_key_for_any_trace(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "known key"))


@operation(free)
def start_anew(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "fresh"))


@operation(free)
def start_anew_with_a_key(h: History, project: Project, draw: Draw) -> None:
    call_once(h, project, make_call(h, draw, "fresh key"))


@operation(free, 3)
def expect_a_step(h: History, project: Project, draw: Draw) -> None:
    """The right one, or one beside it."""
    settle(h, project)
    call = make_call(h, draw)
    step = 0 if call.ask.fresh else h.rules.head_step
    step = step if draw.number % 3 == 0 else max(0, step + (1 if draw.number % 2 else -1))
    call_once(h, project, replace(call, ask=replace(call.ask, expect=step)))


# --- deaths within a call -------------------------------------------------------------------------------------------


@operation(free, 2)
def kill_the_job_of_a_call(h: History, project: Project, draw: Draw) -> None:
    """At a known event; the client lives, and settles it."""
    call = make_call(h, draw)
    states = h.foresee_settling(project)
    decision = h.rules.decide(call.ask)
    where = ""
    if not decision.refused and not decision.replay:
        where = point_of(h.foresee_run(call, decision), draw.number)
    hold(project.path, f"kill {where}")
    found = h.train(project, call)
    hold(project.path)
    h.check_settled(project, states)
    if not where:
        h.check_answer(found, call, decision)
    else:
        run = h.meet(project, call, decision)
        h.adopt(run)
        step = kept_at(run, where)
        assert isinstance(found, Report)
        h.ended(project, run, found, step, "done" if step == run.last else "failed")
        h.seen["killed at " + where.partition(":")[0]] += 1
    h.check()


@operation(free, 2)
def kill_the_job_at_any_write(h: History, project: Project, draw: Draw) -> None:
    _die(h, project, make_call(h, draw), None, draw.writes)


@operation(free, 2)
def kill_the_client_at_any_write(h: History, project: Project, draw: Draw) -> None:
    """Its job, if there is one by then, goes on by itself."""
    _die(h, project, make_call(h, draw), draw.writes % 25, None)


@operation(free, 2)
def kill_both_at_any_write(h: History, project: Project, draw: Draw) -> None:
    _die(h, project, make_call(h, draw), draw.number % 25, draw.writes)


def _die(h: History, project: Project, call: Call, client_dies: int | None, job_dies: int | None) -> None:
    """A call in which processes are killed before the write of that number; what is left is what the rules allow."""
    client, _ = h.client(project, call, die=client_dies, job=job_dies)
    found = client.wait()
    client.all_ended()
    for run in sorted(project.open, key=lambda run: run.name):
        h.adopt(run, whole=False)
        h.gone |= h.rules.doomed(run.keep)
        newest, result = h.rules.newest(run), project.result(run)
        if newest is not None and (result is None or result["state"] == "commit_pending"):
            newest.forked = not h.rules.on_path(newest.name)
    names = project.unknown()
    decision = h.rules.decide(call.ask)
    if names:
        run = h.meet(project, call, decision, names[0])
        h.adopt(run, whole=False)
        newest, result = h.rules.newest(run), project.result(run)
        if found is not None or (result is not None and result["state"] == "done"):
            assert job_dies is not None or (newest is not None and newest.step == run.last)
        if isinstance(found, Report):
            h.ended(project, run, found, newest.step if newest else None, "done", "failed")
        elif found is not None:
            assert isinstance(found, Refusal)
            assert found.code == "no_trainer"
            project.open.remove(run)
        h.seen["client died after its record"] += found is None
    elif found is not None:
        h.check_answer(found, call, decision)
    _forget_the_settled(h, project)
    h.check(exact=False)


def _forget_the_settled(h: History, project: Project) -> None:
    """Runs that a client which died may have settled, or not: what it wrote of them must be right."""
    for run in list(project.open):
        record = project.record(run.name)
        if record["report"] is not None and record["state"] != "commit_pending":
            h.check_end(run, record["report"], {"done", "stopped", "cancelled", "failed", "needs_trace"})
            project.open.remove(run)
