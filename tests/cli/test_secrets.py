"""No text of an example and no token is found in any file, whatever happens."""

from __future__ import annotations

import json

import pytest
from tests.doubles.project import Project

SENTINEL = "xylophone-quartz-sentinel-77"
TOKEN = "hf_" + "Secret" * 5


def _rows() -> str:
    row = {"messages": [{"role": "user", "content": SENTINEL}, {"role": "assistant", "content": f"yes {SENTINEL}"}]}
    return "".join(json.dumps({**row, "n": i}) + "\n" for i in range(4))


def _found(project: Project) -> list[str]:
    words = [SENTINEL.encode(), TOKEN.encode()]
    return [
        str(path)
        for path in project.everything()
        if path.suffix != ".jsonl" or path.name == "events.jsonl" or path.name == "ledger.jsonl"
        if path.name != "faults.json" and any(word in path.read_bytes() for word in words)
    ]


@pytest.mark.parametrize("fault", [{}, {"kill_at": "step:1"}, {"raise_at": 1}, {"kill_at": "judging"}, {"nan_at": 1}])
def test_after_every_ending(project: Project, fault: dict[str, object]) -> None:
    project.faults(**fault, text=SENTINEL)
    name = project.trace("a.jsonl", _rows())
    done = project.run("train", name, "--eval", name, "--json", env={"HF_TOKEN": TOKEN})
    assert done.returncode == (1 if fault else 0)
    assert SENTINEL not in done.stdout + done.stderr
    assert _found(project) == []


def test_after_a_refused_row(project: Project) -> None:
    name = project.trace("a.jsonl", _rows() + f'{{"text": ["{SENTINEL}"]}}\n')
    assert project.run("train", name).returncode == 3
    assert _found(project) == []


def test_the_job_inherits_no_secret(project: Project) -> None:
    python = project.path / "python"
    text = python.read_text().replace("#!/bin/sh\n", f'#!/bin/sh\nenv > "{project.path}/seen.txt"\n')
    python.write_text(text)
    secrets = {"HF_TOKEN": TOKEN, "RUNPOD_API_KEY": "rpa_secret", "AWS_SECRET_ACCESS_KEY": "aws"}
    done = project.run("train", project.trace("a.jsonl", _rows()), env=secrets)
    assert done.returncode == 0
    seen = (project.path / "seen.txt").read_text()
    assert not any(secret in seen for secret in secrets.values())
    assert "HF_HUB_DISABLE_TELEMETRY=1" in seen
