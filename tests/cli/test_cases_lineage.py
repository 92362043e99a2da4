"""Cases from public issue threads: a head with a bad adapter file, and two writers on one lineage."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.doubles.project import Project, kill, rows, until

from stepctl.base.files import sha256_file
from stepctl.base.tensors import BrokenTensors, read_header

CASES = Path(__file__).parent / "cases"
CORRUPT, WRITERS = CASES / "34-corrupt-adapter-file", CASES / "36-two-writers-one-lineage"
ADAPTER = "adapter_model.safetensors"


# --- 34: a half-downloaded adapter ------------------------------------------------------------------------------------


@pytest.fixture
def with_good_head(project: Project) -> list[Path]:
    """Two checkpoints; the head's adapter is the case's good file, as its manifest says."""
    made = [project.train(project.trace(f"{i}.jsonl", rows(4, 10 * i)))["checkpoint"] for i in range(2)]
    folders = [project.path / "checkpoints/main/checkpoints" / name for name in made]
    shutil.copyfile(CORRUPT / "good.safetensors", folders[1] / ADAPTER)
    path = folders[1] / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = next(entry for entry in manifest["files"] if entry["path"] == ADAPTER)
    entry.update(size=272, sha256=sha256_file(folders[1] / ADAPTER))
    path.write_text(json.dumps(manifest))
    return folders


def test_34_the_good_file_is_trained_on(project: Project, with_good_head: list[Path]) -> None:
    assert len(read_header(with_good_head[1] / ADAPTER)) == 2
    project.verify()
    assert project.train(project.trace("c.jsonl", rows(4, 50)))["from_step"] == 2


@pytest.mark.parametrize(("name", "size"), [("cut", 252), ("zero", 0), ("lfs", 129)])
def test_34_a_bad_file_is_named_and_not_trained_on(
    project: Project, with_good_head: list[Path], name: str, size: int
) -> None:
    before, head = with_good_head
    shutil.copyfile(CORRUPT / f"{name}.safetensors", head / ADAPTER)
    runs = project.runs()
    error = project.train(project.trace("c.jsonl", rows(4, 50)), code=1)["error"]
    assert error["code"] == "damaged_checkpoint"
    assert head.name in error["message"]
    assert f"{ADAPTER} has {size} bytes, the manifest says 272" in error["message"]
    assert f"stepctl lineage use {before.name}" in error["next"]
    assert project.runs() == runs  # the manifest and the listing show it: no job was started
    assert sorted(p.name for p in head.parent.iterdir()) == sorted([before.name, head.name])
    # The file is back: the head is where it was. Or the step before is chosen, and training goes on from there.
    shutil.copyfile(CORRUPT / "good.safetensors", head / ADAPTER)
    assert project.status()["head"] == head.name
    shutil.copyfile(CORRUPT / f"{name}.safetensors", head / ADAPTER)
    assert project.call("lineage", "use", before.name).returncode == 0
    again = project.train("c.jsonl")
    assert (again["resumed_from"], again["from_step"]) == (before.name, 1)


def test_34_the_right_size_and_another_content(project: Project, with_good_head: list[Path]) -> None:
    before, head = with_good_head
    data = (CORRUPT / "good.safetensors").read_bytes()
    (head / ADAPTER).write_bytes(data[:-20] + bytes(20))
    error = project.train(project.trace("c.jsonl", rows(4, 50)), code=1)["error"]
    assert f"{ADAPTER} has sha256 {sha256_file(head / ADAPTER)}, the manifest says" in error["message"]
    assert f"stepctl lineage use {before.name}" in error["next"]
    assert project.status()["head"] == head.name


@pytest.mark.parametrize(
    ("name", "said"), [("cut", "is cut: it has 252 bytes, and its header says 272"), ("zero", "empty"), ("lfs", "LFS")]
)
def test_34_without_a_manifest_the_header_tells(name: str, said: str) -> None:
    with pytest.raises(BrokenTensors, match=said):
        read_header(CORRUPT / f"{name}.safetensors")


# --- 36: two writers --------------------------------------------------------------------------------------------------


@pytest.fixture
def at_four(project: Project) -> Project:
    """A lineage at step 4, two rows a step; both traces are there."""
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("[targets.local]", "[train]\ngrad_accum = 2\n[targets.local]"))
    assert project.train(project.trace("start.jsonl", rows(8, 50)))["global_step"] == 4
    return project


def _twin(project: Project) -> Project:
    """Another project on another machine, as it were: the same bucket, runs of its own."""
    folder = project.path / "elsewhere"
    folder.mkdir()
    twin = Project(folder, model=project.model, toml=f'bucket = "{project.path}/checkpoints"\n[train]\ngrad_accum = 2')
    for each in (project, twin):
        for name in ("trace.jsonl", "other.jsonl"):
            shutil.copyfile(WRITERS / name, each.path / name)
    return twin


def test_36_both_read_head_4_and_only_the_first_extends_it(at_four: Project) -> None:
    order = json.loads((WRITERS / "interleave.json").read_text())
    assert [(o["who"], o["do"]) for o in order] == [
        ("A", "read_head"),
        ("B", "read_head"),
        ("A", "commit"),
        ("B", "commit"),
    ]
    a, b = at_four, _twin(at_four)
    a.faults(pause_at="step:5")
    b.faults(pause_at="step:5")
    first = a.start("train", "trace.jsonl", "--json")
    a.wait_for("step:5", until(lambda: a.runs()[1:])[0])
    second = b.start("train", "other.jsonl", "--json")
    b.wait_for("step:5")
    a.go()
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    won = json.loads(out)
    assert (won["from_step"], won["global_step"]) == (4, 5)
    b.go()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 4, err
    lost = json.loads(out)
    assert lost["forked"]
    assert "stepctl lineage forks" in err
    assert (a.status()["head"], a.status()["step"]) == (won["checkpoint"], 5)
    forks = json.loads(a.run("lineage", "forks", "--json").stdout)["forks"]
    assert [(f["checkpoint"], f["leaves_step"], f["step"]) for f in forks] == [(lost["checkpoint"], 4, 6)]
    b.faults()
    again = b.train("other.jsonl")
    assert (again["from_step"], again["global_step"], again["forked"]) == (5, 7, False)
    assert a.trained() == 8 + 2 + 4
    a.verify()


def test_36_in_one_project_the_second_waits_or_is_told_for_whom(at_four: Project) -> None:
    _twin(at_four)
    at_four.faults(pause_at="step:5")
    first = at_four.start("train", "trace.jsonl", "--json")
    run = at_four.wait_for("step:5", until(lambda: at_four.runs()[1:])[0])
    refused = at_four.train("other.jsonl", "--no-wait", code=4)["error"]
    assert run.name in refused["message"]
    second = at_four.start("train", "other.jsonl", "--json")
    assert second.stderr is not None
    until(lambda: second.stderr and run.name in second.stderr.readline())
    at_four.go()
    assert first.communicate(timeout=60) and first.returncode == 0
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert (json.loads(out)["from_step"], json.loads(out)["global_step"]) == (5, 7)
    assert at_four.trained() == 8 + 2 + 4


def test_36_a_dead_writer_holds_nobody_up(at_four: Project) -> None:
    _twin(at_four)
    at_four.faults(pause_at="step:5")
    process = at_four.start("train", "trace.jsonl")
    run = at_four.wait_for("step:5", until(lambda: at_four.runs()[1:])[0])
    job = json.loads((run / "run.json").read_text())["job"]["pid"]
    kill(process)
    os.killpg(job, signal.SIGKILL)
    until(lambda: not _living(job))
    at_four.faults()
    answer = at_four.train("other.jsonl", "--no-wait")
    assert (answer["from_step"], answer["global_step"]) == (4, 6)
    assert at_four.train("trace.jsonl")["global_step"] == 7
    assert at_four.trained() == 8 + 4 + 2


def _living(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"
