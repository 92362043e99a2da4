"""From a target's kind and its recorded settings to a machine."""

from __future__ import annotations

from collections.abc import Mapping

from stepctl.jobs.directory import JobDir
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Machine, Teller
from stepctl.targets.local import LocalMachine

_SILENT = Teller()


def open_machine(
    kind: str,
    options: Mapping[str, object],
    job: JobDir,
    run: str,
    process: ProcessId | None,
    tell: Teller = _SILENT,
    staged: bool = True,
) -> Machine:
    """A machine of ``kind`` for the job in ``job``; ``process`` when the job was started already.

    ``options`` are the target's settings, as recorded with the run, so that attaching needs no settings of today.
    ``staged``: the job writes to a bucket on the machine, from which its checkpoints are fetched. Nothing is connected
    yet.
    """
    if kind == "ssh":
        from stepctl.targets.ssh.open import open_ssh

        return open_ssh(options, job, run, process, tell, staged)
    assert kind == "local", kind
    python = options.get("python")
    return LocalMachine(job, str(python) if python else None, process)
