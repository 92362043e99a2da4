"""What is generated from the model says what the model does."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stepctl.config.describe import example_toml, settings_page, toml_value
from stepctl.config.fields import OPTIONS, PLAIN, flat, settings, target_kinds
from stepctl.config.load import load_settings
from stepctl.config.model import Settings

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "scripts" / "generate_docs.py"


def uncommented() -> str:
    return re.sub(r"^#(?=[^ #\n])", "", example_toml(), flags=re.MULTILINE)


def test_the_example_shows_every_setting_once() -> None:
    document = tomllib.loads(uncommented())
    shown = {key for key, value in document.items() if not isinstance(value, dict)}
    shown |= {f"{section}.{key}" for section in ("lora", "train") for key in document[section]}
    assert shown == set(settings())
    for kind, fields in target_kinds().items():
        if not any(setting.required for setting in fields.values()):
            assert set(document["targets"][kind]) == {"kind", *fields}


@pytest.mark.parametrize("text", [example_toml(), uncommented()], ids=["as it is", "uncommented"])
def test_the_example_is_the_defaults(tmp_path: Path, text: str) -> None:
    defaults = load_settings({}, {}, tmp_path).settings
    (tmp_path / "stepctl.toml").write_text(text, encoding="utf-8")
    assert load_settings({}, {}, tmp_path).settings == defaults


@pytest.mark.parametrize("line", [line for line in example_toml().splitlines() if re.match(r"#[a-z]", line)])
def test_each_line_freed_alone_is_in_its_table(tmp_path: Path, line: str) -> None:
    (tmp_path / "stepctl.toml").write_text(example_toml().replace(f"\n{line}\n", f"\n{line[1:]}\n"), encoding="utf-8")
    key = line[1:].partition(" = ")[0]
    (name,) = load_settings({}, {}, tmp_path).given - {"targets.local.kind"}
    assert name.rpartition(".")[2] == key


def test_every_setting_is_described_and_in_the_page() -> None:
    page = settings_page()
    rows = [*settings().values(), *(field for fields in target_kinds().values() for field in fields.values())]
    for setting in rows:
        assert setting.description.endswith(".")
        row = next(line for line in page.splitlines() if line.startswith(f"| `{setting.name}` |"))
        assert re.sub(r"\\\|", "", row).count("|") == 6
        for name in filter(None, (setting.env, setting.plain, setting.option)):
            assert f"`{name}`" in row
    assert "`HF_TOKEN`" in page


def test_options_and_plain_names_are_of_settings() -> None:
    assert set(OPTIONS) | set(PLAIN) <= set(settings())


def test_limits_are_those_of_the_model() -> None:
    known = settings()
    assert known["lora.r"].limits == "at least 1, at most 1024"
    assert known["lora.dropout"].limits == "at least 0, less than 1"
    assert known["train.learning_rate"].limits == "greater than 0"
    assert known["train.precision"].expected == '"auto", "bf16" or "fp32"'
    assert known["revision"].optional and not known["model"].optional


def test_flat_has_every_value() -> None:
    values = flat(Settings())
    assert list(values) == list(settings())
    assert values == {name: setting.default for name, setting in settings().items()}


@pytest.mark.parametrize("value", ['a"b\\c', True, 3, 1e-4, 1e22, ("a", "b"), "ü"])
def test_toml_values_read_back(value: object) -> None:
    back = tomllib.loads(f"x = {toml_value(value)}")["x"]
    assert back == (list(value) if isinstance(value, tuple) else value)


def test_the_committed_files_are_in_sync() -> None:
    done = subprocess.run(
        [sys.executable, GENERATOR, "--check"], capture_output=True, text=True, env=_env(), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_drift_is_shown_as_a_diff(tmp_path: Path) -> None:
    script = runpy.run_path(str(GENERATOR))
    script["write"](tmp_path)
    assert script["drift"](tmp_path) == ""
    page = tmp_path / "docs" / "settings.md"
    page.write_text(page.read_text() + "by hand\n")
    (tmp_path / "stepctl.toml.example").unlink()
    diff = script["drift"](tmp_path)
    assert "-by hand\n" in diff
    assert "+++ stepctl.toml.example (generated)" in diff


def test_the_generator_exits_1_when_files_drift(tmp_path: Path) -> None:
    """A copy of the scripts looks at the tree that it is in."""
    shutil.copytree(GENERATOR.parent, tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "scripts" / GENERATOR.name

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, script, *arguments], capture_output=True, text=True, env=_env(), check=False
        )

    missing = run("--check")
    assert missing.returncode == 1
    assert "generated files have drifted" in missing.stderr
    assert run().returncode == 0
    assert run("--check").returncode == 0
    assert run("--what").returncode == 2


def _env() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"}
