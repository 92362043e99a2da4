"""``stepctl config`` and ``init`` as a user calls them, through a small main."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepctl.config.fields import settings

SRC = Path(__file__).parents[2] / "src"

MAIN = """
import sys
import typer
from stepctl.cli.config import app as config
from stepctl.cli.errors import report
from stepctl.cli.init import init
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
app.add_typer(config, name="config")
app.command()(init)
try:
    app()
except BaseException as error:
    sys.exit(report(error, "--json" in sys.argv))
finally:
    if "MODULES" in __import__("os").environ:
        print(*sys.modules, file=sys.stderr)
"""

TOKEN = "hf_abcdefghijklmnop"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def stepctl(here: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SRC), "HOME": str(here), **env}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], cwd=here, env=clean, capture_output=True, text=True, check=False
    )


def test_show_tells_each_value_and_its_source(here: Path) -> None:
    (here / "stepctl.toml").write_text("[train]\nseed = 7\n")
    done = stepctl(here, "config", "show", LEARNING_RATE="0.5", STEPCTL_LINEAGE="x", HF_TOKEN=TOKEN, STEPCTL_BIN="b")
    assert done.returncode == 0
    first, *lines = done.stdout.splitlines()
    assert first == f"# {here / 'stepctl.toml'}"
    told = {left.strip(): source for left, source in (line.rsplit("  # ", 1) for line in lines)}
    assert told["train.seed = 7"] == "stepctl.toml"
    assert told["train.learning_rate = 0.5"] == "environment LEARNING_RATE"
    assert told['lineage = "x"'] == "environment STEPCTL_LINEAGE"
    assert told[f'bucket = "{here}/checkpoints"'] == "default"
    assert told["HF_TOKEN (set, not shown)"] == "environment HF_TOKEN"
    assert {left.partition(" = ")[0] for left in told} >= set(settings())
    assert done.stderr == "warning: STEPCTL_BIN is set and is no setting of stepctl: it is ignored\n"
    assert TOKEN not in done.stdout + done.stderr


def test_show_as_json(here: Path) -> None:
    done = stepctl(here, "config", "show", "--json", HUGGING_FACE_HUB_TOKEN=TOKEN, LORA_R="3", STEPCTL_BIN="b")
    said = json.loads(done.stdout)
    assert (said["state"], said["toml"], said["project"]) == ("done", None, str(here))
    assert said["settings"]["lora.r"] == {"value": 3, "source": "environment LORA_R"}
    assert said["settings"]["revision"] == {"value": None, "source": "default"}
    assert said["hf_token"] == {"set": True, "source": "environment HUGGING_FACE_HUB_TOKEN"}
    assert len(said["warnings"]) == 1
    assert set(said["settings"]) >= set(settings())
    assert TOKEN not in done.stdout + done.stderr


def test_check(here: Path) -> None:
    done = stepctl(here, "config", "check")
    assert (done.returncode, done.stdout) == (0, f"ok: no stepctl.toml in {here} or above it\n")
    (here / "stepctl.toml").write_text("lineage = 'x'\n")
    assert stepctl(here, "config", "check").stdout == f"ok: {here / 'stepctl.toml'}\n"
    said = json.loads(stepctl(here, "config", "check", "--json").stdout)
    assert said == {"state": "done", "toml": str(here / "stepctl.toml"), "given": ["lineage"], "warnings": []}


@pytest.mark.parametrize("command", ["check", "show"])
def test_an_error_is_told_to_people_and_programs(here: Path, command: str) -> None:
    (here / "stepctl.toml").write_text("[train]\nlearning_ratee = 1\n")
    done = stepctl(here, "config", command, "--json")
    message = f"unknown setting train.learning_ratee in {here}/stepctl.toml: did you mean train.learning_rate?"
    assert done.returncode == 2
    assert done.stderr == f"error: {message}\nnext: rename or remove it\n"
    said = json.loads(done.stdout)
    assert (said["state"], said["exit_code"]) == ("refused", 2)
    assert said["error"]["message"] == message
    assert said["error"]["details"] == {
        "key": "train.learning_ratee",
        "source": "stepctl.toml",
        "suggestion": "train.learning_rate",
    }


def test_init_then_check_then_init_again(here: Path) -> None:
    (here / "folder").mkdir()
    assert stepctl(here, "init", "folder").returncode == 0
    assert stepctl(here / "folder", "config", "check").stdout == f"ok: {here / 'folder' / 'stepctl.toml'}\n"
    again = stepctl(here, "init", "folder")
    assert again.returncode == 2
    assert "Traceback" not in again.stderr


def test_a_current_folder_that_is_gone(here: Path) -> None:
    gone = here / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r});" + MAIN
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", code, "config", "check"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: no such file or folder\n")


def test_help_and_the_commands_load_nothing_heavy(here: Path) -> None:
    heavy = {"rich", "torch", "huggingface_hub", "transformers"}
    for arguments in (["--help"], ["config", "show"], ["config", "--help"]):
        done = stepctl(here, *arguments, MODULES="1")
        assert not heavy & set(done.stderr.split()), arguments
