"""From exceptions to words, one JSON object and an exit code."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepctl.base.errors import (
    DamagedCheckpoint,
    Exit,
    LineageConflict,
    NotCommitted,
    StepctlError,
    TraceRefused,
    UsageError,
)
from stepctl.base.files import write_atomic
from stepctl.cli.errors import report

SRC = Path(__file__).parents[2] / "src"
FULL = UsageError("what happened\nand where", safe="the head", cost="a pod", next="do this", details={"rows": [1, 2]})


def test_every_part_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(FULL, json_mode=False) == 2
    said = capsys.readouterr()
    assert said.err == "error: what happened\nand where\nsafe: the head\nstill costs: a pod\nnext: do this\n"
    assert said.out == ""


def test_empty_parts_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(StepctlError("what happened"), json_mode=False) == 1
    assert capsys.readouterr().err == "error: what happened\n"


def test_json_has_the_same_and_stderr_too(capsys: pytest.CaptureFixture[str]) -> None:
    report(FULL, json_mode=True)
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert json.loads(said.out) == {
        "state": "refused",
        "error": {
            "code": "usage",
            "message": "what happened\nand where",
            "safe": "the head",
            "cost": "a pod",
            "next": "do this",
            "details": {"rows": [1, 2]},
        },
        "exit_code": 2,
    }
    assert said.err.startswith("error: what happened")


@pytest.mark.parametrize(
    ("error", "state", "code", "exit_code"),
    [
        (UsageError("x", code="unknown_setting"), "refused", "unknown_setting", 2),
        (TraceRefused("x"), "refused", "trace_refused", 3),
        (LineageConflict("x"), "refused", "lineage_conflict", 4),
        (DamagedCheckpoint("x"), "failed", "damaged_checkpoint", 1),
        (NotCommitted("x"), "failed", "commit_pending", 9),
        (KeyboardInterrupt(), "failed", "interrupted", 130),
        (ValueError("x"), "failed", "bug", 1),
    ],
)
def test_states_and_codes(
    capsys: pytest.CaptureFixture[str], error: BaseException, state: str, code: str, exit_code: int
) -> None:
    assert report(error, json_mode=True) == exit_code
    said = json.loads(capsys.readouterr().out)
    assert (said["state"], said["error"]["code"], said["exit_code"]) == (state, code, exit_code)


@pytest.mark.parametrize(
    ("number", "message", "code"),
    [
        (errno.ENOSPC, "the disk is full: /some/file", "disk_full"),
        (errno.EDQUOT, "the disk quota is used up: /some/file", "disk_full"),
        (errno.EACCES, "permission denied: /some/file", "no_permission"),
        (errno.EROFS, "the file system is read-only: /some/file", "read_only"),
        (errno.ENOENT, "no such file or folder: /some/file", "not_found"),
        (errno.EIO, "Input/output error: /some/file", "system"),
    ],
)
def test_the_operating_systems_errors(capsys: pytest.CaptureFixture[str], number: int, message: str, code: str) -> None:
    assert report(OSError(number, os.strerror(number), "/some/file"), json_mode=True) == Exit.FAILED
    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert (error["message"], error["code"], error["details"]) == (message, code, {"paths": ["/some/file"]})
    assert "next: " in said.err and "safe: " in said.err


def test_a_rename_names_both_paths_and_an_error_without_path_none(capsys: pytest.CaptureFixture[str]) -> None:
    report(OSError(errno.ENOSPC, "No space", "/a", None, "/b"), json_mode=False)
    assert "the disk is full: /a -> /b\n" in capsys.readouterr().err
    report(OSError(errno.ENOSPC, "No space"), json_mode=False)
    assert "error: the disk is full\n" in capsys.readouterr().err


def test_a_real_full_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError) as caught, Path("/dev/full").open("wb", buffering=0) as full:
        full.write(b"x")
    assert report(caught.value, json_mode=False) == 1
    assert "the disk is full" in capsys.readouterr().err


def test_a_real_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError) as caught:
        write_atomic(tmp_path / "none" / "file", b"")
    report(caught.value, json_mode=False)
    assert f"no such file or folder: {tmp_path / 'none'}" in capsys.readouterr().err


def bug() -> BaseException:
    secret = "hf_abcdefghijkl"
    try:
        {}[f"text of an example {len(secret)}"]
    except KeyError as error:
        return error
    raise AssertionError


def test_a_bug_is_two_lines_without_the_exceptions_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPCTL_DEBUG", raising=False)
    assert report(bug(), json_mode=True) == 1
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "error: this is a bug in stepctl: KeyError",
        "next: repeat the command with STEPCTL_DEBUG=1 and report what it prints",
    ]
    assert "text of an example" not in said.out


def test_a_bug_says_where_in_stepctl(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        write_atomic(None, b"")  # type: ignore[arg-type]
    except AttributeError as error:
        report(error, json_mode=False)
    assert "this is a bug in stepctl: AttributeError at base/files.py:" in capsys.readouterr().err


def test_debug_prints_the_traceback_but_no_locals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPCTL_DEBUG", "1")
    assert report(bug(), json_mode=True) == 1
    said = capsys.readouterr()
    assert "Traceback (most recent call last)" in said.err
    assert "hf_abcdefghijkl" not in said.err.replace('secret = "hf_abcdefghijkl"', "")
    json.loads(said.out)
    report(FULL, json_mode=False)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), ("words", 1)])
def test_system_exit_keeps_its_code(capsys: pytest.CaptureFixture[str], code: object, expected: int) -> None:
    assert report(SystemExit(code), json_mode=True) == expected
    assert capsys.readouterr() == ("", "")


def test_a_broken_pipe_to_another_process_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError) as caught:
        os.write(write, b"x")
    os.close(write)
    assert report(caught.value, json_mode=False) == 1
    assert "error: Broken pipe" in capsys.readouterr().err


CHILD = """
    import sys
    from stepctl.cli.errors import report
    from stepctl.cli.output import Output
    try:
        for _ in range(100000):
            Output().line("x" * 100)
    except BaseException as error:
        sys.exit(report(error, json_mode={json_mode}))
"""


@pytest.mark.parametrize("json_mode", [True, False])
def test_a_reader_that_leaves_gets_no_words(json_mode: bool) -> None:
    code = textwrap.dedent(CHILD.format(json_mode=json_mode))
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stderr
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


def test_streams_on_a_full_disk_leave_the_exit_code() -> None:
    code = textwrap.dedent("""
        import sys
        from stepctl.base.errors import UsageError
        from stepctl.cli.errors import report
        sys.exit(report(UsageError("x"), json_mode=True))
    """)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            stdout=full,
            stderr=full,
            check=False,
        )
    assert done.returncode in (2, 120)
