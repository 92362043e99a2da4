"""What every kind of target offers. A machine is a live connection to one job's directory."""

from __future__ import annotations

from typing import Protocol

from stepctl.jobs.directory import Payload
from stepctl.jobs.spec import JobSpec
from stepctl.runs.record import ProcessId


class Machine(Protocol):
    """One job's directory on some machine. Everything but ``start`` works from another process as well."""

    def start(self, spec: JobSpec) -> ProcessId:
        """Write job.json and start the trainer, which waits for its examples.

        Raises:
            StepctlError: the trainer cannot be started here.
        """

    def send(self, payload: Payload) -> None:
        """Send secrets and examples; called once, by the process that started the job.

        Raises:
            StepctlError: the trainer ended before it had taken them.
        """

    def sync(self) -> None:
        """Bring events, log and result here, as far as they are written."""

    def alive(self) -> bool:
        """Whether the trainer's process still runs."""

    def death(self) -> str:
        """How the trainer's process ended, in words; empty when nobody knows."""

    def request(self, what: str) -> None:
        """Ask for ``stop`` (save and end) or ``cancel`` (end without saving)."""

    def signal(self, name: str) -> None:
        """Send ``TERM`` or ``KILL`` to the whole process group of the job."""
