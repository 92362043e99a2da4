"""Starting must be quick: what importing stepctl may load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepctl

SOURCE = Path(stepctl.__file__).resolve().parent
HEAVY = ("torch", "transformers", "trl", "peft", "datasets", "huggingface_hub")
LATE = ("rich", "jinja2", "tokenizers", "psutil", "paramiko", "cryptography", "httpx", "pyarrow", "zstandard")
TRAINER = "stepctl.trainer"


def all_modules() -> list[str]:
    """Every module of stepctl, from its files (nothing is imported to find them), but programs: to import is to run."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def loaded_by(*names: str) -> set[str]:
    """The modules that a fresh interpreter loads to import ``names``, beyond those it starts with."""
    code = (
        "import importlib, sys; names = sys.argv[1:]; before = set(sys.modules)\n"
        "for name in names: importlib.import_module(name)\n"
        "after = set(sys.modules) - before\n"
        "import json; print(json.dumps(sorted(after)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_the_package_alone_loads_nothing_but_itself() -> None:
    assert loaded_by("stepctl") == {"stepctl"}


def test_no_module_outside_trainer_loads_a_training_library() -> None:
    names = [name for name in all_modules() if name != TRAINER and not name.startswith(TRAINER + ".")]
    loaded = loaded_by(*names)
    assert set(names) <= loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_order_of_a_job_loads_no_training_library() -> None:
    """``trainer/engine.py`` and ``trainer/job.py`` are what tests without torch stand on."""
    names = [name for name in (f"{TRAINER}.engine", f"{TRAINER}.job") if name in all_modules()]
    assert loaded_by(*names).isdisjoint(HEAVY)


@pytest.mark.parametrize("name", [name for name in all_modules() if name in ("stepctl.cli", "stepctl.cli.main")])
def test_the_command_line_starts_without_what_only_some_commands_use(name: str) -> None:
    assert loaded_by(name).isdisjoint({*HEAVY, *LATE})
