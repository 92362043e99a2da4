"""From results and ledgers to reports, and the commands that reports name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calls.test_decide import line_of

from stepctl.base.errors import StepctlError
from stepctl.calls.reporting import read_result, replayed
from stepctl.jobs.directory import JobDir
from stepctl.runs.report import Report


@pytest.mark.parametrize(("recorded", "said"), [(False, False), (True, True), (None, True)])
def test_a_replay_says_whether_it_was_exact(recorded: bool | None, said: bool) -> None:
    report = Report(run=None, state="planned", method="sft", model="m", lineage="main", bucket="/b", target="local")
    line = line_of(1, key="k", exact=recorded)
    assert replayed(report, line, None).exact is said


def test_a_result_of_a_newer_release_is_refused_by_name(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    job.result.write_text(json.dumps({"version": 99, "state": {"new": "shape"}}))
    with pytest.raises(StepctlError, match="version 99") as error:
        read_result(job)
    assert error.value.code == "result_version"
    assert str(job.result) in error.value.message


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"version": 1}'])
def test_a_damaged_result_names_its_file(tmp_path: Path, data: bytes) -> None:
    job = JobDir(tmp_path)
    job.result.write_bytes(data)
    with pytest.raises(StepctlError, match="cannot be read") as error:
        read_result(job)
    assert f"rm {job.result}" in error.value.next
