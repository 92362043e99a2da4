"""Folders that arrive whole, and leave without what is not theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.project import ROOT

from stepctl.base.archive import files_below, pack

ENV = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}


def agent(*words: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "stepctl.agent", *map(str, words)]
    return subprocess.run(command, env=ENV, input=data, capture_output=True, check=False)


def stream(folder: Path) -> bytes:
    parts: list[bytes] = []
    pack(files_below(folder), lambda part: parts.append(bytes(part)))
    return b"".join(parts)


def receive(workdir: Path, dest: Path, data: bytes, **head: Any) -> dict[str, Any]:
    done = agent("unpack", workdir, data=json.dumps({"dest": str(dest), **head}).encode() + b"\n" + data)
    told: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == ("sha256" in told)
    return told


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "from/sub").mkdir(parents=True)
    (tmp_path / "from/a").write_text("1")
    (tmp_path / "from/sub/b").write_text("2")
    return tmp_path / "from"


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_goes_there_and_back(source: Path, workdir: Path) -> None:
    target = workdir / "models/m"
    told = receive(workdir, target, stream(source))
    assert names(target) == {"a", "sub/b"}
    done = agent("pack", target, ".")
    assert done.stdout.endswith(json.dumps({"sha256": told["sha256"]}).encode() + b"\n")
    assert done.stdout == stream(source)
    assert agent("pack", target, "sub").stdout != done.stdout
    assert (target.parent.stat().st_mode | (target / "a").stat().st_mode) & 0o77 == 0


def test_an_arriving_folder_takes_the_old_one_s_place(source: Path, workdir: Path) -> None:
    target = workdir / "runs/r/bucket"
    receive(workdir, target, stream(source), digest="one")
    assert (workdir / "runs/r/.bucket.from").read_text() == "one"
    (target / "left").write_text("x")
    (source / "a").unlink()
    receive(workdir, target, stream(source), digest="two")
    assert names(target) == {"sub/b"}
    receive(workdir, target, stream(source / "sub"), keep=True)
    assert names(target) == {"sub/b"}
    assert {path.name for path in target.parent.iterdir()} == {"bucket", ".bucket.from"}


def test_a_stream_that_is_cut_leaves_what_was_there(source: Path, workdir: Path) -> None:
    target = workdir / "runs/r/bucket"
    receive(workdir, target, stream(source))
    assert "cut" in receive(workdir, target, stream(source)[:-5])["error"]
    assert names(workdir) == {"runs/r/bucket/a", "runs/r/bucket/sub/b"}


@pytest.mark.parametrize("where", ["../outside", "/tmp/stepctl-outside", ".", "link/x"])
def test_nothing_is_written_outside_of_the_working_directory(
    source: Path, workdir: Path, tmp_path: Path, where: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (workdir / "link").symlink_to(tmp_path / "elsewhere")
    assert "is not below" in receive(workdir, workdir / where, stream(source))["error"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_killed_transfers_left_goes_after_a_day(source: Path, workdir: Path) -> None:
    old, new = workdir / ".tmp-in-old", workdir / ".tmp-in-new"
    for folder in (old, new):
        folder.mkdir()
    day = time.time() - 25 * 3600
    os.utime(old, (day, day))
    receive(workdir, workdir / "m", stream(source))
    assert not old.exists()
    assert new.exists()


def test_links_and_missing_folders_are_told(workdir: Path) -> None:
    (workdir / "m").mkdir()
    (workdir / "m/passwd").symlink_to("/etc/passwd")
    done = agent("pack", workdir / "m", ".")
    assert "links are not followed" in json.loads(done.stdout)["error"]
    assert b"root:" not in done.stdout
    assert "error" in json.loads(agent("pack", workdir / "none", ".").stdout)
