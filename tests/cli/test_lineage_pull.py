"""``lineage pull``: a verified copy, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doubles.project import Project, dying_program, rows
from tests.trainer.tiny import build_tiny

from stepctl.calls.pull import Pulled

ADAPTER = ["README.md", "adapter_config.json", "adapter_model.safetensors"]


def pulled(project: Project, *args: object, code: int = 0) -> dict[str, Any]:
    done = project.call("lineage", "pull", *args, "--json")
    assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
    assert "Traceback" not in done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def stored(project: Project, checkpoint: str) -> Path:
    return project.path / "checkpoints/main/checkpoints" / checkpoint


def leftovers(project: Project) -> list[Path]:
    return list(project.path.glob(".tmp-*"))


@pytest.fixture
def heads(trained: Callable[[int], list[str]]) -> list[str]:
    """Two checkpoints of the project's lineage."""
    return trained(2)


def test_the_adapter_of_the_head(project: Project, heads: list[str]) -> None:
    answer = pulled(project, "out")
    done = msgspec.convert(answer, Pulled)
    folder = project.path / "out"
    assert (done.checkpoint, done.step, done.path, done.files) == (heads[1], 2, str(folder), ADAPTER)
    assert names(folder) == ADAPTER
    assert done.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert (folder / ADAPTER[2]).read_bytes() == (stored(project, heads[1]) / ADAPTER[2]).read_bytes()
    card = (folder / "README.md").read_text()
    assert all(word in card for word in (heads[1], "lineage main", "step 2", "| method | sft |", "files:"))
    assert str(project.path) not in card
    assert not leftovers(project)


def test_another_step_and_another_name(project: Project, heads: list[str]) -> None:
    assert pulled(project, "one", "--step", 1)["checkpoint"] == heads[0]
    assert pulled(project, "two", "--checkpoint", heads[0][:8])["checkpoint"] == heads[0]
    assert pulled(project, "three", "--step", 7, code=2)["error"]["details"]["kept"] == [1, 2]
    assert pulled(project, "three", "--checkpoint", "0", code=2)["error"]["code"] == "ambiguous_checkpoint"
    pulled(project, "three", "--step", 1, "--checkpoint", heads[0], code=2)
    pulled(project, "three", "--lineage", "empty", code=2)
    assert not (project.path / "three").exists()


def test_a_fork_at_that_step_is_pulled_by_its_name(project: Project, heads: list[str]) -> None:
    project.call("lineage", "rollback", "--to", 1)
    error = pulled(project, "out", "--step", 2, code=2)["error"]
    assert error["safe"] == "nothing was copied"
    assert f"stepctl lineage pull DIR --checkpoint {heads[1]}" in error["next"]


def test_the_whole_checkpoint(project: Project, heads: list[str]) -> None:
    pulled(project, "deep/er/out", "--all")
    folder, here = project.path / "deep/er/out", stored(project, heads[1])
    assert names(folder) == sorted(["README.md", *names(here)])
    assert all((folder / name).read_bytes() == (here / name).read_bytes() for name in names(here))


def test_again_is_nothing_and_something_else_is_refused(project: Project, heads: list[str]) -> None:
    pulled(project, "out")
    before = {path: path.stat().st_mtime_ns for path in (project.path / "out").iterdir()}
    assert pulled(project, "out/")["state"] == "unchanged"
    assert "nothing to do" in project.call("lineage", "pull", "out").stdout
    for args in (("--all",), ("--step", 1)):
        error = pulled(project, "out", *args, code=2)["error"]
        assert error["code"] == "not_empty"
        assert "not touched" in error["safe"]
    assert {path: path.stat().st_mtime_ns for path in (project.path / "out").iterdir()} == before


@pytest.mark.parametrize("change", ["more", "less", "other", "link"])
def test_nearly_the_same_is_not_the_same(project: Project, heads: list[str], change: str) -> None:
    pulled(project, "out")
    folder = project.path / "out"
    if change == "more":
        (folder / "mine.txt").write_text("mine")
    elif change == "less":
        (folder / "adapter_config.json").unlink()
    elif change == "other":
        (folder / "README.md").write_text("mine")
    else:
        (folder / "README.md").rename(project.path / "card")
        (folder / "README.md").symlink_to(project.path / "card")
    found = names(folder)
    pulled(project, "out", code=2)
    assert names(folder) == found


def test_folders_that_cannot_be_used(project: Project, heads: list[str]) -> None:
    (project.path / "empty").mkdir()
    assert pulled(project, "empty")["state"] == "done"
    (project.path / "real").mkdir()
    (project.path / "link").symlink_to("real")
    pulled(project, "link")
    assert names(project.path / "real") == ADAPTER
    (project.path / "file").write_text("mine")
    assert "not a folder" in pulled(project, "file", code=2)["error"]["message"]
    assert (project.path / "file").read_text() == "mine"
    pulled(project, ".", code=2)
    assert "not a folder" in pulled(project, "file/deep/er", code=2)["error"]["message"]
    assert "not known" in pulled(project, "~nobody-has-this-name/out", code=2)["error"]["message"]
    pulled(project, str(project.path / "model"), code=2)


@pytest.mark.parametrize("content", ["cut", "same size"])
def test_a_damaged_adapter_is_not_pulled(project: Project, heads: list[str], content: str) -> None:
    path = stored(project, heads[1]) / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] if content == "cut" else b"x" * path.stat().st_size)
    for args in ((), ("--all",), ("--checkpoint", heads[1])):
        error = pulled(project, "out", *args, code=1)["error"]
        assert "adapter_model.safetensors" in error["message"]
        assert f"stepctl lineage use {heads[0]}" in error["next"]
    assert not (project.path / "out").exists()
    assert not leftovers(project)
    assert pulled(project, "out", "--checkpoint", heads[0])["step"] == 1
    assert pulled(project, "out", "--step", 1)["state"] == "unchanged"


DYING = dying_program("replace", "rename", "mkdir")


def test_killed_before_each_act(project: Project, heads: list[str]) -> None:
    """The folder is whole or not there; what a killed call left beside it is removed a day later."""
    (project.path / "dying.py").write_text(DYING)
    folder, deaths = project.path / "out", 0
    for left in range(20):
        line = project.command("lineage", "pull", "out")
        line[1:3] = [str(project.path / "dying.py"), str(left)]
        done = subprocess.run(line, cwd=project.path, env=project.env, capture_output=True, check=False, timeout=60)
        if done.returncode != -signal.SIGKILL:
            break
        deaths += 1
        assert not folder.exists()
    assert deaths >= 4
    assert names(folder) == ADAPTER
    assert leftovers(project)
    for path in leftovers(project):
        os.utime(path, (1, 1))
    (project.path / ".tmp-mine").mkdir()
    os.utime(project.path / ".tmp-mine", (1, 1))
    (folder / "README.md").unlink()
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_model.safetensors").unlink()
    pulled(project, "out")
    assert [path.name for path in leftovers(project)] == [".tmp-mine"]


@pytest.mark.torch
def test_peft_loads_it(tmp_path: Path) -> None:
    """The base model with what was pulled says what it says with the checkpoint, and not what it says alone."""
    model = build_tiny(tmp_path / "tiny")
    project = Project(tmp_path, model=model)
    project.faults(engine="torch")
    head = project.train(project.trace("a.jsonl", rows(4)), "--learning-rate", "0.01")["checkpoint"]
    pulled(project, "out")
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def says(folder: Path | None) -> torch.Tensor:
        base = AutoModelForCausalLM.from_pretrained(model)
        loaded = PeftModel.from_pretrained(base, str(folder)) if folder else base
        with torch.no_grad():
            return loaded(torch.tensor([[3, 4, 5]])).logits

    assert torch.equal(says(project.path / "out"), says(stored(project, head)))
    assert not torch.allclose(says(project.path / "out"), says(None))
