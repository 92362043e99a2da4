"""The real trainer on a tiny model: wherever the client is killed, the adapter is that of an undisturbed run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doubles.rented import Cloud, Stage
from tests.doubles.runpod import Sandbox, levels
from tests.matrix.cases import ALL, Case
from tests.matrix.follow import AGAIN, FOLLOWS, codes_of
from tests.matrix.points import RUN
from tests.matrix.rig import MORE, Rented, call, kill_at, quicken, remove
from tests.matrix.rules import check
from tests.trainer.tiny import build_tiny

from stepctl.base.files import sha256_file

pytestmark = [pytest.mark.pods, pytest.mark.torch, pytest.mark.long]

CASES = (
    ("create", "after", "same"),
    ("wheel", "after", "attach"),
    ("unpack-parent", "late", "same"),  # the model: there is no parent here
    ("launch", "late", "attach"),
    ("launch", "after", "same"),
    ("payload", "lost", "attach"),
    ("payload", "late", "same"),
    ("payload", "after", "rm"),
    ("poll-more", "after", "attach"),
    ("over", "after", "same"),
    ("pack", "late", "attach"),
    ("pack", "after", "same"),
    ("delete", "after", "attach"),
    ("last-list", "lost", "same"),
)


class Trained(Rented):
    """``expected``: the digest of the adapter that an undisturbed run makes."""

    expected = ""

    def adapter(self) -> str:
        head = self.status()["head"]
        return sha256_file(self.path / "checkpoints/main/checkpoints" / head / "adapter_model.safetensors")

    def trained(self) -> int:
        assert self.adapter() == self.expected, "the adapter is another one than that of an undisturbed run"
        return MORE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Pods whose virtual environment is this Python's, trainer and all."""
    levels.need()
    stage = Stage(tmp_path_factory.mktemp("real"))
    (stage.venv / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    with Sandbox(tmp_path_factory.mktemp("cloud"), pods="netns", show=stage.shown, python=True) as sandbox:
        yield Cloud(sandbox, stage)


@pytest.fixture(scope="module")
def expected(real: Cloud, model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    project = Trained(tmp_path_factory.mktemp("undisturbed"), real, model=model)
    quicken(real)
    said = call(project, *AGAIN)
    assert said.code == 0, said.err
    return project.adapter()


@pytest.fixture
def project(real: Cloud, model: Path, expected: str, tmp_path: Path) -> Iterator[Trained]:
    quicken(real)
    project = Trained(tmp_path, real, model=model)
    project.expected = expected
    yield project
    remove(tmp_path)


def cases() -> list[Case]:
    points = {point.name: point for point in RUN}
    found = [Case(points[point], side, then) for point, side, then in CASES]
    return found if ALL else found[5:6]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_killed(project: Trained, case: Case) -> None:
    killed = kill_at(project, case.point, case.when, *AGAIN, lost=case.lost)
    said = FOLLOWS[case.then](project)
    check(project, killed, said, keys={"b": MORE}, codes=codes_of(case.then))
