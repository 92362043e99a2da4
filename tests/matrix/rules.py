"""What must hold when everything is over, wherever a client was killed: one function for all cases."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from tests.doubles.runpod import Sandbox
from tests.matrix.rig import Killed, Rented, Said, call, leaks

from stepctl.runs.pods import Attempt, PodFile

SLACK = 2.5
"""Seconds: the provider's clock tells whole ones, and an end is seen at the next question."""

ENDERS = {"account": ("client", "reaper"), "provider": ("provider",)}


def check(
    project: Rented,
    killed: Killed,
    said: Iterable[Said],
    *,
    keys: dict[str, int],
    codes: tuple[int, ...] = (0,),
    twins: int = 0,
    moved: bool = False,
    unresolved: bool = False,
    others: Sequence[Rented] = (),
) -> None:
    """All of it.

    Args:
        project: where the client was killed.
        said: the commands that followed, in order; the last one must have had success.
        keys: rows that were trained in all under each key of the ledger.
        codes: what the commands before the last may have exited with, besides success.
        twins: living pods beyond one that a fault made at the same time.
        moved: the provider's clock was moved, so that times tell nothing.
        others: projects that had pods too.
        unresolved: a create without an answer may be open for ever, which exit code 8 tells.
    """
    sandbox = project.sandbox
    story = sandbox.told() + "\n" + "\n".join(f"$ {' '.join(each.args)}: {each.code}\n{each.err}" for each in said)
    story += f"\nkilled {killed.when} {killed.point}\n" + killed.told
    try:
        _commands(list(said), (*codes, 8) if unresolved else codes, unresolved)
        _pods(sandbox, twins)
        _records([project, *others], moved, unresolved)
        for each in (project, *others):
            _secrets(each, killed)
        _trained(project, keys)
        _account(project)
        sandbox.check()
    except AssertionError as error:
        raise AssertionError(f"{error}\n\n{story}") from None


def _commands(said: list[Said], codes: tuple[int, ...], unresolved: bool) -> None:
    """Every command ended as it should: no traceback, and an error says what to type next."""
    for each in said:
        assert "Traceback" not in each.err, each.err
        assert each.code in (0, *codes), f"{each.args} exited with {each.code}: {each.err}"
        if each.code == 8:
            assert "may still be alive" in each.err and "next: stepctl pod rm" in each.err, each.err
        elif each.code:
            error = each.report["error"]
            assert error["message"] and error["next"], f"an error without words: {error}"
            assert error["next"] in each.err, each.err
    assert said[-1].code == 0 or (unresolved and said[-1].code == 8), said[-1].err


def _pods(sandbox: Sandbox, twins: int) -> None:
    """None is left, and there never were two but for known twins."""
    assert sandbox.pods() == [], f"pods are left: {[pod['name'] for pod in sandbox.pods()]}"
    living: set[str] = set()
    for entry in sandbox.events():
        if entry.event == "created":
            living.add(entry.pod)
            assert len(living) <= 1 + twins, f"{len(living)} pods at once: {living}"
        elif entry.event == "ended":
            living.discard(entry.pod)


def _records(projects: list[Rented], moved: bool, unresolved: bool) -> None:
    """pod.json tells of every pod that ever was, once, and tells the truth; the reports agree."""
    sandbox = projects[0].sandbox
    gone = {pod["id"]: pod for pod in sandbox.gone()}
    unseen: set[str] = set()
    times = {(entry.event, entry.pod): entry.at for entry in sandbox.events()}
    known: dict[str, Attempt] = {}
    for run in (run for project in projects for run in project.runs()):
        file = PodFile(run)
        if not file.exists():
            continue
        record = file.load()
        assert not record.secret_open, f"{run.name}: its secret is said to be there"
        # While a create has no answer yet, its pod may still have to be let in to.
        for name in ("client_key", "known_hosts") if not record.open else ():
            assert not (run / name).exists(), f"{run.name}: {name} is left"
        for attempt in record.attempts:
            lost = unresolved and attempt.state == "unresolved"
            unseen |= {attempt.name} if lost else set()
            assert lost or attempt.state in ("gone", "refused", "handed"), f"{run.name}: {attempt}"
            if attempt.pod is not None and attempt.state != "handed":
                assert attempt.pod not in known, f"two records of pod {attempt.pod}"
                known[attempt.pod] = attempt
        _report(run, [msgspec.to_builtins(each) for each in record.attempts], record.spent_usd)
        told = json.loads((run / "run.json").read_text())["report"]["pod_alive"]
        assert told == any(each.state == "unresolved" for each in record.attempts), f"{run.name}: pod_alive is {told}"
    seen = {id_ for id_, pod in gone.items() if pod["name"] not in unseen}
    assert set(known) == seen, f"pods {seen} were made, and {set(known)} are recorded"
    for id_, attempt in known.items():
        _receipt(attempt, gone[id_], times, moved)


def _receipt(attempt: Attempt, pod: dict[str, Any], times: dict[tuple[str, str], float], moved: bool) -> None:
    assert attempt.state == "gone" and attempt.gone_at and attempt.reason, attempt
    assert attempt.ended_by in ENDERS.get(pod["endedBy"], ("pod",)), f"{pod['endedBy']} ended it: {attempt}"
    if moved:
        return
    ended, began = times["ended", attempt.pod or ""], times["created", attempt.pod or ""]
    gone = datetime.fromisoformat(attempt.gone_at).timestamp()
    by_us = pod["endedBy"] == "account"
    assert ended - SLACK <= gone, f"gone at {gone - ended:+.1f} s of its end: {attempt}"
    assert not by_us or gone <= ended + 60, f"gone at {gone - ended:+.1f} s of its end: {attempt}"
    spent = attempt.price * (gone - began) / 3600 if attempt.price else None
    assert spent is not None and attempt.spent_usd is not None, attempt
    assert abs(attempt.spent_usd - spent) <= (attempt.price or 0) * SLACK / 3600, (attempt.spent_usd, spent)


def _report(run: Path, pods: list[dict[str, Any]], spent: float) -> None:
    """An ended run's report has the receipts as they are."""
    record = json.loads((run / "run.json").read_text())
    assert record["state"] not in ("created", "starting", "running"), f"{run.name} is {record['state']}"
    report = record["report"]
    assert report is not None, f"{run.name} has no report"
    if pods:
        assert abs(report["cost_usd"] - spent) < 1e-3, f"{run.name}: {report['cost_usd']} and not {spent}"
        told = [(each["name"], each["pod"], each["state"]) for each in report["pods"]]
        assert told == [(each["name"], each["pod"], each["state"]) for each in pods], f"{run.name}: {told}"


def _secrets(project: Rented, killed: Killed) -> None:
    """No example and no key is anywhere; the account has no secret of ours."""
    sandbox = project.sandbox
    assert sandbox.secrets() == {}, f"secrets are left: {list(sandbox.secrets())}"
    found = killed.leaks + leaks(project)
    assert not found, f"examples or keys are in {found}"
    for path in project.everything():
        if path.suffix == ".jsonl" and path.parent == project.path:
            continue
        if path.name == "client_key" and PodFile(path.parent).load().open:
            continue  # a create has no answer yet, and its pod may still have to be let in to
        data = path.read_bytes()
        assert not any(text.encode() in data for text in project.hidden), f"an example or a key is in {path}"


def _trained(project: Rented, keys: dict[str, int]) -> None:
    """Every row once; the lineage is clean; the ledger has each key once."""
    assert project.trained() == sum(keys.values()), f"{project.trained()} rows are trained, of {keys}"
    project.verify()
    log = call(project, "lineage", "log").report
    done: dict[str, list[int]] = {}
    for entry in log["entries"]:
        done.setdefault(entry["key"], []).append(entry["rows_done"])
    assert {key: rows[-1] for key, rows in done.items()} == keys, f"the log has {done}"
    assert all(rows == sorted(set(rows)) for rows in done.values()), f"the log has {done}"
    for run in project.runs():
        left = [path for name in ("stage", "init", "restore") for path in run.glob(name)] + list(run.glob("out/*"))
        assert not left, f"left in the run's folder: {left}"


def _account(project: Rented) -> None:
    """Nothing is rented, and nothing would be reaped."""
    found = call(project, "pod", "ls")
    assert found.code == 0 and found.report["pods"] == [], (found.code, found.out, found.err)
