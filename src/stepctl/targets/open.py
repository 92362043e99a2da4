"""From a target's name in the settings to a machine."""

from __future__ import annotations

from stepctl.jobs.directory import JobDir
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Machine
from stepctl.targets.local import LocalMachine


def open_machine(kind: str, options: dict[str, object], job: JobDir, process: ProcessId | None) -> Machine:
    """A machine of ``kind`` for the job in ``job``; ``process`` when the job was started already.

    ``options`` are the target's settings, as recorded with the run, so that attaching needs no settings of today.
    """
    assert kind == "local", kind
    python = options.get("python")
    return LocalMachine(job, str(python) if python else None, process)
