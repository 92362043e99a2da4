"""A job that is held at an event while others go on, a bucket that fails, two writers, and attaching."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from typing import Any

from tests.calls.history import History
from tests.calls.operation import (
    Draw,
    attach_to,
    attachable,
    both_free,
    committing,
    followed,
    free,
    held,
    job_of,
    keyed,
    make_call,
    operation,
    point_of,
    saving,
    settle,
)
from tests.calls.operations import lose_the_times
from tests.calls.projects import BEFORE_STEPS, Call, Live, Project, cancelled_at, kept_at, stopped_at
from tests.calls.rules import Ask
from tests.doubles.forked import Refusal, hold, outcome, until

from stepctl.calls.attach import attach
from stepctl.calls.stop import cancel, stop
from stepctl.runs.report import Report

# --- a job that is held, while others go on -------------------------------------------------------------------------


def start(h: History, project: Project, call: Call, point: str | int, *, follow: bool) -> bool:
    """A call whose job is held at an event; False when the call has nothing to train."""
    states = h.foresee_settling(project)
    decision = h.rules.decide(call.ask)
    if decision.refused or decision.replay:
        h.check_answer(h.train(project, call), call, decision)
        h.check_settled(project, states)
        h.check()
        return False
    at = point_of(h.foresee_run(call, decision), point) if isinstance(point, int) else point
    hold(project.path, f"pause {at}")
    client = None
    if follow:
        client, _ = h.client(project, call)
    else:
        found = h.train(project, call, detach=True)
        assert isinstance(found, Report), found
        assert (found.state, found.exit_code) == ("running", 0)
    until(project.unknown, "a new run")
    h.check_settled(project, states)
    run = h.meet(project, call, decision)
    project.live = Live(run, at, client)
    h.wait_until_held(project, at)
    h.adopt(run, whole=not at.startswith("manifest_stored"))
    h.check(exact=not at.startswith("manifest_stored"))
    h.seen["held at " + at.partition(":")[0]] += 1
    return True


def fate(h: History, live: Live, step: int | None, state: str) -> tuple[int | None, str]:
    """How a held job ends; it has nothing to start from when others moved the head on and pruned its parent."""
    parent = live.run.parent
    if live.at in BEFORE_STEPS[:4] and parent in h.rules.nodes and parent not in h.rules.alive:
        h.seen["its parent is pruned"] += 1
        return None, "failed"
    return step, state


def finish(h: History, project: Project) -> None:
    """Let the held job come to its end."""
    live = job_of(project)
    report = h.release(project)
    h.adopt(live.run, again=live.locked)
    step, state = fate(h, live, live.run.last, "done")
    if live.followed:
        assert isinstance(report, Report), report
        h.ended(project, live.run, report, step, state)
    else:
        newest = h.rules.newest(live.run)
        assert (newest.step if newest else None) == step
    h.check()


@operation(free, 8)
def start_and_hold(h: History, project: Project, draw: Draw) -> None:
    start(h, project, make_call(h, draw), draw.number, follow=draw.flag)


@operation(held)
def let_it_end(h: History, project: Project, draw: Draw) -> None:
    finish(h, project)


@operation(held, 3)
def stop_it(h: History, project: Project, draw: Draw) -> None:
    live = job_of(project)
    run, step = live.run, stopped_at(live.run, live.at)
    found = outcome(lambda: stop(h.world(project), run.name))
    seen = h.release(project)
    h.adopt(run, again=live.locked)
    assert not live.followed or seen.exit_code == found.exit_code
    h.ended(project, run, found, *fate(h, live, step, "done" if step == run.last else "stopped"))
    h.check()


@operation(held, 3)
def cancel_it(h: History, project: Project, draw: Draw) -> None:
    live = job_of(project)
    run, step = live.run, cancelled_at(live.run, live.at)
    if step is not None and live.failed_at == step and not live.in_doubt:
        newest = h.rules.newest(run)
        step = newest.step if newest else None
    found = outcome(lambda: cancel(h.world(project), run.name))
    seen = h.release(project)
    h.adopt(run, again=live.locked or live.in_doubt)
    assert not live.followed or seen.exit_code == found.exit_code
    end = step, "done" if step == run.last else "cancelled"
    h.ended(project, run, found, *(fate(h, live, *end) if live.at == "data" else end))
    h.check()


@operation(saving, 8)
def cancel_it_and_kill_its_job(h: History, project: Project, draw: Draw) -> None:
    """What it saved by then was not wanted any more: nobody commits it."""
    live = job_of(project)
    newest = h.rules.newest(live.run)
    hold(project.path, f"pause {live.at}\nkill files_stored:{live.at.partition(':')[2]}")
    found = outcome(lambda: cancel(h.world(project), live.run.name))
    h.release(project)
    h.adopt(live.run)
    h.ended(project, live.run, found, newest.step if newest else None, "cancelled")
    h.check()


@operation(held, 3)
def kill_its_job(h: History, project: Project, draw: Draw) -> None:
    """With SIGKILL. Who follows it settles it; else it stays for whoever comes next."""
    live = job_of(project)
    run, step = live.run, kept_at(live.run, live.at)
    os.kill(project.record(run.name)["job"]["pid"], signal.SIGKILL)
    found = h.release(project)
    h.adopt(run, whole=live.followed, again=live.followed and (live.locked or live.in_doubt))
    if live.followed:
        h.ended(project, run, found, step, "done" if step == run.last else "failed")
    else:
        newest = h.rules.newest(run)
        assert max(project.saved(run) or 0, newest.step if newest else 0) == (step or 0)
    h.check(exact=live.followed)


@operation(followed, 5)
def kill_its_client(h: History, project: Project, draw: Draw) -> None:
    """The job goes on by itself."""
    client = job_of(project).client
    assert client is not None
    client.kill()
    client.wait()


@operation(held)
def kill_it_with_its_client(h: History, project: Project, draw: Draw) -> None:
    if job_of(project).followed:
        kill_its_client(h, project, draw)
    kill_its_job(h, project, draw)


@operation(keyed, 2)
def call_again_while_it_runs(h: History, project: Project, draw: Draw) -> None:
    """The same call under the same key follows the run."""
    live = job_of(project)
    client, notices = h.client(project, Call(Ask(live.run.ask.trace, key=live.run.key)))
    until(lambda: notices.exists() and "following it" in notices.read_text(), "following")
    report = h.release(project)
    found = client.wait()
    client.all_ended()
    h.adopt(live.run, again=live.locked)
    assert isinstance(found, Report), found
    assert report is None or report.exit_code == found.exit_code
    h.ended(project, live.run, found, *fate(h, live, live.run.last, "done"))
    h.check()


@operation(held, 2)
def call_without_waiting(h: History, project: Project, draw: Draw) -> None:
    live = job_of(project)
    ask, code = Ask(h.new_trace(draw.rows)), "busy"
    if draw.flag and live.run.key is not None:
        ask, code = replace(ask, key=live.run.key), "key_conflict"
    found = h.train(project, Call(ask), no_wait=True)
    assert isinstance(found, Refusal), found
    assert (found.code, found.exit_code) == (code, 4)
    h.seen[code] += 1


@operation(held, 2)
def call_and_wait(h: History, project: Project, draw: Draw) -> None:
    """Another call of the same project waits for the run and then goes by the head as it is then."""
    live, call = job_of(project), make_call(h, draw)
    if call.ask.key is not None and call.ask.key == live.run.key:
        call = make_call(h, draw, "new key")
    client, notices = h.client(project, call)
    until(lambda: notices.exists() and "waiting for run" in notices.read_text(), "waiting")
    report = h.release(project)
    found = client.wait()
    client.all_ended()
    h.adopt(live.run, again=live.locked)
    h.ended(project, live.run, report, *fate(h, live, live.run.last, "done"))
    decision = h.rules.decide(call.ask)
    if decision.refused or decision.replay:
        h.check_answer(found, call, decision)
    else:
        run = h.meet(project, call, decision)
        h.adopt(run)
        h.ended(project, run, found, run.last)
    h.check()


@operation(committing, 12)
def the_bucket_fails(h: History, project: Project, draw: Draw) -> None:
    """A file is in the bucket's place while a commit goes on; afterwards the bucket is back."""
    live = job_of(project)
    run, (phase, _, step) = live.run, live.at.partition(":")
    away = h.base / "away"
    h.place.mkdir(exist_ok=True)
    h.place.rename(away)
    h.place.write_text("in the way")
    if int(step) == run.last:
        found = h.release(project)
        _is_pending(h, project, live, found, retry=draw.flag)
    else:
        point = f"step:{int(step) + 1}"
        hold(project.path, f"pause {point}")
        h.wait_until_held(project, point)
        live.at = point
        live.failed_at, live.in_doubt = int(step), phase == "manifest_stored"
        h.seen["a commit on the way fails"] += 1
    h.place.unlink()
    away.rename(h.place)
    h.adopt(run, whole=False)
    h.check(exact=False)


def _is_pending(h: History, project: Project, live: Live, found: Any, *, retry: bool) -> None:
    run = live.run
    h.seen["commit_pending"] += 1
    if live.followed:
        assert (found.state, found.exit_code) == ("commit_pending", 9)
        assert (found.global_step, found.rows_done) == (run.last, len(run.ask.trace.rows))
        assert found.error["code"] == "commit_pending"
    if retry:
        again = outcome(lambda: attach(h.world(project), run.name))
        assert isinstance(again, Refusal)
        assert (again.code, again.exit_code) == ("commit_pending", 9)
        refused = h.train(project, Call(run.ask))
        assert isinstance(refused, Refusal)
        assert refused.code == "bucket"


# --- two writers ----------------------------------------------------------------------------------------------------


@operation(both_free)
def two_writers(h: History, project: Project, draw: Draw) -> None:
    """Both read the same head; the one that stores later makes a fork. They may train the same trace."""
    one, two = project, next(other for other in h.projects if other is not project)
    settle(h, one)
    settle(h, two)
    call = make_call(h, draw, "new key" if draw.flag else "new")
    other = replace(call, group=draw.number % 4 + 1, every_step=draw.number % 2 == 0)
    if draw.pick % 2:
        other = replace(other, ask=Ask(h.new_trace(draw.rows)))
    assert start(h, one, call, "steps", follow=True)
    assert start(h, two, other, "steps", follow=True)
    before = h.seen["forked"]
    finish(h, two)
    finish(h, one)
    assert h.seen["forked"] == before + 1
    if draw.rows % 2:
        lose_the_times(h, project, draw)


@operation(both_free)
def a_race(h: History, project: Project, draw: Draw) -> None:
    """Two clients at once, nobody holds them: each order is right, and nothing is lost."""
    for each in h.projects:
        settle(h, each)
    keep = max(2, draw.keep)  # with 1, the one would prune what the other is about to start from
    asks = [Ask(h.new_trace(rows), key=h.new_key()) for rows in (draw.rows, draw.number % 7 + 1)]
    calls = [Call(ask, draw.group, keep) for ask in asks]
    head = h.rules.head
    clients = [h.client(each, call)[0] for each, call in zip(h.projects, calls, strict=True)]
    found = [client.wait() for client in clients]
    for client in clients:
        client.all_ended()
    order = []
    for each, call, report in zip(h.projects, calls, found, strict=True):
        [name] = each.unknown()
        order.append((each.record(name)["parent"] != head, _stored_at(each, name), each, call, report))
    order.sort(key=lambda entry: entry[:2])
    runs = [h.meet(each, call, h.rules.decide(call.ask)) for late, _, each, call, _ in order if not late]
    for late, _, each, call, report in order:
        run = h.meet(each, call, h.rules.decide(call.ask)) if late else runs.pop(0)
        h.adopt(run)
        h.ended(each, run, report, run.last)
    h.check(exact=False)


def _stored_at(project: Project, name: str) -> float:
    lines = (project.path / "runs" / name / "events.jsonl").read_text().splitlines()
    times = [event["at"] for event in map(json.loads, lines) if event.get("phase") == "manifest_stored"]
    assert times, project.record(name)["error"]
    return float(times[0])


@operation(attachable, 3)
def attach_to_any(h: History, project: Project, draw: Draw) -> None:
    runs = project.open or list(project.runs.values())
    attach_to(h, project, runs[-1 - draw.pick % len(runs)])
