"""From a target's settings, as a run recorded them, to a machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepctl.jobs.directory import JobDir
from stepctl.runs.record import RunRecord
from stepctl.targets.base import Machine, Teller
from stepctl.targets.local import LocalMachine


def open_machine(options: Mapping[str, Any], job: JobDir, record: RunRecord, tell: Teller) -> Machine:
    """The machine of a run whose directory here is ``job``.

    ``options`` are the target's settings, as recorded with the run, so that attaching needs no settings of today.
    """
    assert options["kind"] == "local", options["kind"]
    return LocalMachine(job, options.get("python"), record.job)
