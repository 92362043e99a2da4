"""``stepctl init`` writes a file that loads as the defaults, and never over another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepctl.base.errors import UsageError
from stepctl.cli.init import init
from stepctl.config.describe import example_toml
from stepctl.config.load import load_settings


def test_it_writes_the_example_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    init()
    file = tmp_path / "stepctl.toml"
    assert file.read_text() == example_toml()
    assert capsys.readouterr().out == f"wrote {file}\n"
    assert load_settings({}, {}, tmp_path).toml == file
    assert [p.name for p in tmp_path.iterdir()] == ["stepctl.toml"]


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init(tmp_path, json=True)
    assert json.loads(capsys.readouterr().out) == {"state": "done", "path": str(tmp_path / "stepctl.toml")}


@pytest.mark.parametrize("kind", ["file", "dead link", "folder"])
def test_never_over_an_existing_one(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "stepctl.toml"
    if kind == "file":
        file.write_text("mine")
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("elsewhere")
    with pytest.raises(UsageError, match=r"stepctl\.toml exists already") as caught:
        init(tmp_path)
    assert (caught.value.exit_code, caught.value.safe) == (2, "it was not touched")
    assert "move it away first" in caught.value.next
    assert not (tmp_path / "elsewhere").exists()
    assert kind != "file" or file.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["stepctl.toml"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder") as caught:
        init(tmp_path / "none")
    assert caught.value.next == f"make it first: mkdir -p {tmp_path / 'none'}"
