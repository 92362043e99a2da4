"""Three machines with nothing in common but a bucket, the real trainer, and a model that the Hub serves too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.hub_machines import machine
from tests.doubles.hub import Hub
from tests.doubles.project import Project, rows
from tests.trainer.tiny import build_tiny

pytestmark = pytest.mark.torch


def test_three_machines_and_a_model_of_the_hub(plain_hub: Hub, tmp_path: Path) -> None:
    commit = plain_hub.add_model("tiny/model", build_tiny(tmp_path / "tiny"))
    url = f"hf://buckets/u/{tmp_path.name}"
    at = 0
    for number, (count, step) in enumerate(((10, 3), (10, 6), (1, 7))):
        project = machine(plain_hub, url, tmp_path / str(number), model=Path("tiny/model"))
        project.faults(engine="torch")
        name = project.trace("a.jsonl", rows(count, 20 * number))
        if number == 0:
            _plan(plain_hub, project, name)
        done = project.train(name)
        assert (done["from_step"], done["global_step"], done["exact"]) == (at, step, True)
        project.verify()
        at = step
    bucket = f"u/{tmp_path.name}"
    newest = max(path for path in plain_hub.stored(bucket) if path.endswith("/manifest.json"))
    manifest = json.loads(plain_hub.content(bucket, newest))
    assert (manifest["step"], manifest["identity"]["revision"]) == (7, commit)


def _plan(hub: Hub, project: Project, name: str) -> None:
    """A plan asks the real trainer, says what would come, and makes no bucket."""
    toml = project.path / "stepctl.toml"
    kept = toml.read_text()
    toml.write_text(kept.partition("[targets.local]")[0])
    done = project.run("train", name, "--dry-run", "--json")
    toml.write_text(kept)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["global_step"] == 3
    assert hub.requests("POST /api/buckets/[^/]+/[^/]+$") == []
