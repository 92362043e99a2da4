"""``lineage ls``, ``log`` and ``forks`` as a person and a program see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import Project, rows

from stepctl.cli.lineage.log import run_lines
from stepctl.lineage.store import Forks, Log, Overview, RunEntry


def asked(project: Project, *args: object, code: int = 0) -> dict[str, Any]:
    """A lineage command with --json; the object it prints."""
    done = project.call("lineage", *args, "--json")
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    assert "Traceback" not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def damage(project: Project, checkpoint: str, file: str = "optimizer.safetensors", lineage: str = "main") -> None:
    path = project.path / "checkpoints" / lineage / "checkpoints" / checkpoint / file
    path.write_bytes(path.read_bytes()[:-3])


def test_the_list_of_all_lineages(project: Project) -> None:
    assert asked(project, "ls")["lineages"] == []
    assert "no lineages" in project.call("lineage", "ls").stdout
    head = project.train(project.trace("a.jsonl", rows(8)))["checkpoint"]
    other = project.train(project.trace("b.jsonl", rows(4, 20)), "--lineage", "other")["checkpoint"]
    damage(project, other, lineage="other")
    answer = asked(project, "ls")
    msgspec.convert(answer, Overview)
    main, hurt = answer["lineages"]
    assert (main["lineage"], main["head"], main["step"], main["checkpoints"], main["damaged"]) == (
        "main",
        head,
        2,
        1,
        False,
    )
    assert (main["method"], main["model"]) == ("sft", str(project.model))
    assert (hurt["lineage"], hurt["damaged"]) == ("other", True)
    assert "optimizer.safetensors" in hurt["problem"]
    text = project.call("lineage", "ls").stdout
    assert f"head: {head}" in text
    assert "damaged: checkpoint" in text


def test_the_log_tells_runs_and_what_changed(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(5)), "--key", "monday")
    project.train(project.trace("b.jsonl", rows(4, 20)), "--learning-rate", "1e-5")
    answer = asked(project, "log")
    log = msgspec.convert(answer, Log)
    first, second = answer["entries"]
    assert (first["from_step"], first["step"], first["rows_done"], first["rows_total"]) == (0, 2, 5, 5)
    assert (first["key"], first["changed"], first["exact"], first["loss"]) == ("monday", [], True, 0.5)
    assert len(first["trace_sha256"]) == 64
    assert second["changed"] == [{"name": "learning_rate", "before": 1e-4, "after": 1e-5}]
    assert log.head == second["checkpoint"]
    text = project.call("lineage", "log").stdout
    assert "learning_rate 0.0001 -> 1e-05" in text
    assert "monday" in text
    assert first["trace_sha256"][:12] in text
    assert first["trace_sha256"] not in text


def test_another_version_is_a_change_and_inexact_is_said(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    project.faults(versions={"standin": "2"})
    project.train(project.trace("b.jsonl", rows(4, 20)))
    entry = asked(project, "log")["entries"][1]
    assert entry["changed"] == [{"name": "versions.standin", "before": "1", "after": "2"}]
    text = project.call("lineage", "log").stdout
    assert "standin 1 -> 2" in text
    assert "exact" not in text
    inexact = msgspec.structs.replace(msgspec.convert(entry, RunEntry), exact=False)
    assert "    standin 1 -> 2, exact: no" in list(run_lines(inexact))


def test_what_changed_outlives_pruning(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    project.train(project.trace("b.jsonl", rows(4, 20)), "--learning-rate", "1e-5")
    project.train(project.trace("c.jsonl", rows(4, 30)), env={"STEPCTL_KEEP_CHECKPOINTS": "1"})
    entries = asked(project, "log")["entries"]
    assert [len(e["changed"]) for e in entries] == [0, 1, 0]
    assert entries[1]["stored"] == []


def test_a_run_with_checkpoints_on_its_way_is_one_entry(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\nsave_every_minutes = 1e-9\n[targets.local]"))
    project.train(project.trace("b.jsonl", rows(12, 20)))
    entries = asked(project, "log")["entries"]
    assert [(e["from_step"], e["step"], e["commits"]) for e in entries] == [(0, 1, 1), (1, 4, 3)]
    # Its own changes are told once, against the run before.
    assert [c["name"] for c in entries[1]["changed"]] == ["save_every_minutes"]


def test_choices_and_what_they_left_are_in_the_log(project: Project, trained: Callable[[int], list[str]]) -> None:
    names = trained(3)
    asked(project, "rollback", "--to", 1)
    fresh = project.train(project.trace("f.jsonl", rows(4, 90)), "--fresh")
    every = asked(project, "log", "--all")["entries"]
    assert [e.get("reason") or e["on_path"] for e in every] == [False, False, False, "rollback", "fresh", True]
    assert (every[3]["at"], every[3]["left"]) == (names[0], names[2])
    assert every[5]["run"] == fresh["run"]
    here = asked(project, "log")["entries"]
    assert [e["kind"] for e in here] == ["choice", "choice", "run"]
    text = project.call("lineage", "log", "--all").stdout
    assert f"rollback: {names[0]}, 2" in text
    assert f"    away from {names[2]}\n" in text
    assert "fresh: a new start" in text
    assert "not part of the head; kept: " + names[2] in text


def test_forks_and_how_to_use_one(project: Project, trained: Callable[[int], list[str]]) -> None:
    names = trained(3)
    assert asked(project, "forks")["forks"] == []
    assert "has no forks" in project.call("lineage", "forks").stdout
    asked(project, "rollback", "--to", 1)
    project.train(project.trace("d.jsonl", rows(4, 50)))
    answer = asked(project, "forks")
    msgspec.convert(answer, Forks)
    found = [(f["checkpoint"], f["leaves"], f["steps"], len(f["runs"])) for f in answer["forks"]]
    assert found == [(names[1], names[0], 1, 1), (names[2], names[0], 2, 2)]
    text = project.call("lineage", "forks", "--lineage", "main").stdout
    assert f"after {names[0]}:" in text
    assert "stepctl lineage use CHECKPOINT --lineage main" in text


@pytest.mark.parametrize("command", ["log", "forks"])
def test_a_damaged_head_is_said_and_hides_nothing(
    project: Project, trained: Callable[[int], list[str]], command: str
) -> None:
    before, head = trained(2)
    damage(project, head)
    answer = asked(project, command)
    assert head in answer["problem"]
    assert len(answer.get("entries", [1, 2])) == 2
    done = project.call("lineage", command)
    assert "is damaged" in done.stderr
    if command == "log":
        # The hints of damage say that this lists what can be gone on from.
        assert f"complete checkpoints, newest first: {head}, {before}" in done.stdout


def test_lines_fit_a_terminal(project: Project, trained: Callable[[int], list[str]]) -> None:
    trained(3)
    asked(project, "rollback", "--to", 1)
    for command in (("log", "--all"), ("forks",)):
        lines = project.call("lineage", *command).stdout.splitlines()
        assert len(lines) > 4 or command == ("forks",)
        assert [line for line in lines if len(line) > 80 and str(project.path) not in line] == []


def test_an_unreadable_manifest_beside_the_path_shows_in_the_list(
    project: Project, trained: Callable[[int], list[str]]
) -> None:
    names = trained(2)
    asked(project, "rollback", "--to", 1)
    damage(project, names[1], "manifest.json")
    (line,) = asked(project, "ls")["lineages"]
    assert line["damaged"]
    assert "manifest.json" in line["problem"]


@pytest.mark.parametrize("command", ["log", "forks", "ls"])
def test_a_lineage_that_does_not_exist_is_empty(project: Project, command: str) -> None:
    done = project.call("lineage", command)
    assert done.returncode == 0, done.stderr
    assert not (project.path / "checkpoints").exists()


def test_a_bad_name_is_refused(project: Project) -> None:
    assert asked(project, "log", "--lineage", "../x", code=2)["error"]["message"]


def test_nothing_is_written_by_looking(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    before = {path: path.stat().st_mtime_ns for path in project.everything()}
    for command in (("ls",), ("log", "--all"), ("forks",)):
        asked(project, *command)
    assert {path: path.stat().st_mtime_ns for path in project.everything()} == before


def test_an_unreadable_lineage_does_not_hide_the_others(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    broken = project.path / "checkpoints" / "broken"
    broken.mkdir()
    (broken / "checkpoints").symlink_to(Path("/nowhere"))
    broken_line, main = asked(project, "ls")["lineages"]
    assert broken_line["damaged"]
    assert not main["damaged"]
