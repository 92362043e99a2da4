"""``lineage rollback`` and ``lineage use``: another head, nothing lost, and what that means for keys and for runs."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import Project, kill, rows, until
from tests.lineage.making import make

from stepctl.calls import choosing
from stepctl.calls.choosing import Chosen
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.store import commit, read_lineage

Trained = Callable[[int], list[str]]


def asked(project: Project, *args: object, code: int = 0) -> dict[str, Any]:
    done = project.call("lineage", *args, "--json")
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    assert "Traceback" not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def damage(project: Project, checkpoint: str, file: str = "optimizer.safetensors") -> None:
    path = project.path / "checkpoints/main/checkpoints" / checkpoint / file
    path.write_bytes(path.read_bytes()[:-3])


def choices(project: Project) -> int:
    return len(list((project.path / "checkpoints/main/choices").glob("0*.json")))


def test_back_on_again_and_back_to_where_it_was(project: Project, trained: Trained) -> None:
    names = trained(3)
    answer = asked(project, "rollback", "--to", 1)
    chosen = msgspec.convert(answer, Chosen)
    assert (chosen.state, chosen.head, chosen.step, chosen.left) == ("done", names[0], 1, names[2])
    assert chosen.left_behind == [names[1], names[2]]
    assert chosen.keys_again == ["k1", "k2"]
    # k0 is in the head: answered. k1 is not: it trains again, from there.
    assert project.train("0.jsonl", "--key", "k0")["replayed"]
    again = project.train("1.jsonl", "--key", "k1")
    assert (again["replayed"], again["from_step"], again["resumed_from"]) == (False, 1, names[0])
    assert project.trained() == 8
    back = asked(project, "use", names[2])
    assert (back["head"], back["left"], back["keys_again"]) == (names[2], again["checkpoint"], [])
    assert project.train("2.jsonl", "--key", "k2")["replayed"]
    assert project.trained() == 12
    project.verify()


def test_what_a_person_reads(project: Project, trained: Trained) -> None:
    names = trained(2)
    done = project.call("lineage", "rollback", "--to", 1, "--lineage", "main")
    assert f"is now {names[0]} at step 1" in done.stdout
    assert f"left behind, and kept: {names[1]}" in done.stdout
    assert "train again: k1" in done.stdout
    assert f"to come back: stepctl lineage use {names[1]} --lineage main" in done.stdout


def test_the_head_already(project: Project, trained: Trained) -> None:
    names = trained(2)
    for command in (("rollback", "--to", 2), ("use", names[1]), ("use", names[1][:10])):
        answer = asked(project, *command)
        assert (answer["state"], answer["head"], answer["left_behind"]) == ("unchanged", names[1], [])
    assert "already: nothing changed" in project.call("lineage", "use", names[1]).stdout
    assert choices(project) == 0


def test_steps_that_are_none(project: Project, trained: Trained) -> None:
    names = trained(5)
    before = project.status()["head"]
    pruned = asked(project, "rollback", "--to", 1, code=2)["error"]
    assert "step 1 is pruned" in pruned["message"]
    assert "kept steps: 3, 4, 5" in pruned["message"]
    never = asked(project, "rollback", "--to", 9, code=2)["error"]
    assert "no checkpoint of the head's path is at step 9" in never["message"]
    zero = asked(project, "rollback", "--to", 0, code=2)["error"]
    assert "--fresh" in zero["next"]
    assert asked(project, "rollback", "--to", -1, code=2)
    asked(project, "rollback", "--to", 4)
    beside = asked(project, "rollback", "--to", 5, code=2)["error"]
    assert f"stepctl lineage use {names[4]}" in beside["next"]
    assert project.status()["head"] == names[3] != before


def test_names_that_are_none(project: Project, trained: Trained) -> None:
    names = trained(2)
    for word in ("nothing", "00000009", "root", "../x", "", names[0] + "x"):
        error = asked(project, "use", word, code=2)["error"]
        assert error["code"] == "no_such_checkpoint"
        assert names[1] in error["next"]
    ambiguous = asked(project, "use", "0000000", code=2)["error"]
    assert ambiguous["code"] == "ambiguous_checkpoint"
    assert all(name in ambiguous["message"] for name in names)
    assert asked(project, "rollback", "--to", 1, "--lineage", "empty", code=2)["error"]["code"] == "no_such_step"
    assert choices(project) == 0


def test_a_name_that_is_pruned(project: Project, trained: Trained) -> None:
    names = trained(5)
    error = asked(project, "use", names[0], code=2)["error"]
    assert "pruned" in error["message"]
    assert all(name in error["next"] for name in names[2:])
    assert choices(project) == 0


def test_an_unfinished_trace_at_the_new_head_is_said(project: Project) -> None:
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\nsave_every_minutes = 1e-9\n[targets.local]"))
    project.train(project.trace("a.jsonl", rows(12)), "--key", "a")
    answer = asked(project, "rollback", "--to", 1)
    assert (answer["rows_done"], answer["rows_total"], answer["keys_again"]) == (4, 12, ["a"])
    rest = project.train("a.jsonl", "--key", "a")
    assert (rest["from_step"], rest["rows_done"]) == (1, 12)
    assert project.trained() == 12


@pytest.mark.parametrize("file", ["optimizer.safetensors", "ledger.jsonl", "manifest.json"])
def test_away_from_a_damaged_head(project: Project, trained: Trained, file: str) -> None:
    names = trained(3)
    damage(project, names[2], file)
    refused = project.train(project.trace("d.jsonl", rows(4, 80)), code=1)["error"]
    assert names[2] in refused["message"]
    assert f"stepctl lineage use {names[1]}" in refused["next"]
    answer = asked(project, "rollback", "--to", 2)
    assert (answer["head"], answer["left"]) == (names[1], names[2])
    assert names[2] in answer["left_problem"]
    again = project.train("d.jsonl")
    assert (again["from_step"], again["global_step"]) == (2, 3)
    assert project.trained() == 12


def test_a_head_that_nothing_places(project: Project, trained: Trained) -> None:
    """Neither its manifest nor its ledger can be read: the path ends before it, and the choice passes it over."""
    names = trained(3)
    for file in ("manifest.json", "ledger.jsonl"):
        (project.path / "checkpoints/main/checkpoints" / names[2] / file).write_text("{")
    assert project.call("status").returncode == 1
    answer = asked(project, "rollback", "--to", 2)
    assert answer["head"] == names[1]
    assert project.train(project.trace("d.jsonl", rows(4, 80)))["resumed_from"] == names[1]


def test_an_unreadable_choice_is_left_behind_too(project: Project, trained: Trained) -> None:
    names = trained(3)
    asked(project, "rollback", "--to", 2)
    (project.path / "checkpoints/main/choices/000001.json").write_text("{")
    error = json.loads(project.call("status", "--json").stdout)["error"]
    assert "stepctl lineage use" in error["next"]
    assert asked(project, "use", names[1])["head"] == names[1]
    assert project.status()["head"] == names[1]


def test_a_damaged_checkpoint_is_not_made_the_head(project: Project, trained: Trained) -> None:
    names = trained(3)
    damage(project, names[1])
    path = project.path / "checkpoints/main/checkpoints" / names[0] / "optimizer.safetensors"
    path.write_bytes(b"x" * path.stat().st_size)  # only its content tells
    for command in (("rollback", "--to", 2), ("use", names[1]), ("rollback", "--to", 1)):
        error = asked(project, *command, code=1)["error"]
        assert error["code"] == "damaged_checkpoint"
        assert "optimizer.safetensors" in error["message"]
    assert project.status()["head"] == names[2]
    assert choices(project) == 0


# --- runs that are not finished ---------------------------------------------------------------------------------------


def test_not_while_a_run_goes_on(project: Project, trained: Trained) -> None:
    names = trained(2)
    project.faults(pause_at="step:3")
    process = project.start("train", project.trace("c.jsonl", rows(4, 80)), "--json")
    run = project.wait_for("step:3")
    for command in (("rollback", "--to", 1), ("use", names[0])):
        error = asked(project, *command, code=4)["error"]
        assert error["code"] == "busy"
        assert run.name in error["message"]
        assert f"stepctl train attach {run.name}" in error["next"]
    assert choices(project) == 0
    project.go()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["forked"] is False
    # What is wrong anyway is said at once, run or no run; another lineage's run is no hindrance.
    assert asked(project, "rollback", "--to", 1)["head"] == names[0]


def test_a_run_of_another_lineage_is_no_hindrance(project: Project, trained: Trained) -> None:
    trained(2)
    project.faults(pause_at="step:1")
    process = project.start("train", project.trace("c.jsonl", rows(4, 80)), "--lineage", "other")
    project.wait_for("step:1")
    assert asked(project, "rollback", "--to", 1)["step"] == 1
    project.go()
    assert process.communicate(timeout=60) and process.returncode == 0


def _dies_with_saved_work(project: Project) -> Path:
    """A job that dies with its checkpoint saved here and not committed, and its command line with it."""
    project.faults(pause_at="saving", kill_at="files_stored")
    process = project.start("train", project.trace("dead.jsonl", rows(4, 70)), "--key", "dead")
    until(lambda: project.runs())
    run = project.wait_for("saving", until(lambda: _newest_with(project, "dead")))
    kill(process)
    project.go()
    pid = json.loads((run / "run.json").read_text())["job"]["pid"]
    until(lambda: not _living(pid))
    project.faults()
    return run


def _newest_with(project: Project, key: str) -> Path | None:
    return next((r for r in project.runs() if json.loads((r / "run.json").read_text())["key"] == key), None)


def _living(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_a_dead_run_is_settled_first(project: Project, trained: Trained) -> None:
    """Its work is committed, is what the rollback leads away from, and can be used."""
    names = trained(2)
    run = _dies_with_saved_work(project)
    answer = asked(project, "rollback", "--to", 2)
    assert answer["head"] == names[1]
    assert answer["left"] == f"00000003-{run.name}"
    assert project.status()["head"] == names[1]
    assert asked(project, "use", f"00000003-{run.name}")["step"] == 3
    assert project.train("dead.jsonl", "--key", "dead")["replayed"]
    assert project.trained() == 12


def test_a_dead_run_on_a_head_that_is_damaged_now(project: Project, trained: Trained) -> None:
    """What it saved is stored, off the path; nothing of it comes onto the new head later."""
    names = trained(2)
    run = _dies_with_saved_work(project)
    damage(project, names[1])
    damaged_child = f"00000003-{run.name}"
    answer = asked(project, "use", names[0])
    assert answer["head"] == names[0]
    next_one = project.train(project.trace("e.jsonl", rows(4, 90)))
    assert (next_one["resumed_from"], next_one["forked"]) == (names[0], False)
    assert project.status()["head"] == next_one["checkpoint"]
    assert damaged_child in [f["checkpoint"] for f in asked(project, "forks")["forks"]]
    assert project.trained() == 8


# --- deaths -----------------------------------------------------------------------------------------------------------

DYING = """
import os, signal, sys
when, left = sys.argv.pop(1), int(sys.argv.pop(1))
def dying(name):
    real = getattr(os, name)
    def call(*a, **k):
        global left
        if "choices" not in str(a):
            return real(*a, **k)
        left -= 1
        if left < 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*a, **k)
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(os, name, call)
for name in ("link", "mkdir"):
    dying(name)
from stepctl.cli.main import main
main()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", ["rollback", "use"])
def test_killed_around_the_choice(project: Project, trained: Trained, when: str, command: str) -> None:
    """Killed before or after each act on the choices, then called again: one head, the right one."""
    names = trained(3)
    (project.path / "dying.py").write_text(DYING)
    words = ("rollback", "--to", "1") if command == "rollback" else ("use", names[0])
    deaths = 0
    for _ in range(6):
        line, left = project.command("lineage", *words), deaths if when == "before" else 0
        line[1:3] = [str(project.path / "dying.py"), when, str(left)]
        done = subprocess.run(line, cwd=project.path, env=project.env, capture_output=True, check=False, timeout=60)
        if done.returncode != -signal.SIGKILL:
            break
        deaths += 1
        assert project.status()["head"] in (names[0], names[2])
    assert deaths == 2  # at the folder of the choices, and at the choice
    assert asked(project, *words)["head"] == names[0]
    assert project.status()["head"] == names[0]
    assert choices(project) == 1
    assert project.train("1.jsonl", "--key", "k1")["resumed_from"] == names[0]
    project.verify()


def test_two_choices_at_once(project: Project, trained: Trained) -> None:
    """Both are kept in order; the later one counts."""
    names = trained(3)
    both = [project.start("lineage", "rollback", "--to", n, "--json") for n in (1, 2)]
    for process in both:
        _, err = process.communicate(timeout=60)
        # The one that comes second may not find step 2 on its path any more.
        assert process.returncode in (0, 2), err
    assert project.status()["head"] in names[:2]
    assert choices(project) in (1, 2)


def test_what_another_machine_commits_meanwhile_is_told(
    project: Project, trained: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is what the rollback leads away from, though it was not there when the lineage was looked at."""
    names = trained(2)
    bucket = open_bucket(str(project.path / "checkpoints"))
    ledger = read_lineage(bucket, "main").ledger
    real = choosing.choose

    def later(*args: Any) -> Any:
        commit(bucket, *make(tmp_path / "far", "far", parent=names[1], ledger=ledger, key="far"))
        return real(*args)

    monkeypatch.setattr(choosing, "choose", later)
    answer = asked(project, "rollback", "--to", 1)
    far = "00000003-far"
    assert (answer["left"], answer["left_step"]) == (far, 3)
    assert answer["left_behind"] == [names[1], far]
    assert answer["keys_again"] == ["k1", "far"]
