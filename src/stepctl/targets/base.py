"""What every kind of target offers. A machine is a live connection to one job's directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stepctl.base.errors import Exit, StepctlError
from stepctl.jobs.directory import Payload
from stepctl.jobs.events import AnyEvent
from stepctl.jobs.spec import JobSpec
from stepctl.runs.record import ProcessId


class MachineGone(StepctlError):
    """The machine does not exist any more, and what was on it alone is lost."""

    code = "machine_gone"


class GivenUp(StepctlError):
    """A cancel came from elsewhere while the machine was being got."""

    exit_code = Exit.CANCELLED
    code = "cancelled"


@dataclass(frozen=True)
class Teller:
    """How a machine says what it does: lines for a person, and events (transfers) for the display."""

    notice: Callable[[str], None] = lambda _: None
    event: Callable[[AnyEvent], None] = lambda _: None


@dataclass(frozen=True)
class Freight:
    """What must lie on the machine before the job can start there. Everything is a folder of this machine.

    Attributes:
        stage: a bucket with the parent checkpoint alone, in a directory bucket's layout; None when there is no parent,
            or the job reads the bucket itself.
        init: a folder with the adapter that a new lineage starts from.
        model: the folder of a base model that is not on the Hub; ``model_digest`` names its content.
    """

    stage: Path | None = None
    init: Path | None = None
    model: Path | None = None
    model_digest: str = ""


class Machine(Protocol):
    """One job's directory on some machine. Everything but ``start`` and ``send`` works from another process as well."""

    @property
    def staged(self) -> bool:
        """Whether checkpoints stay on the machine until they are retrieved; else the job writes to the bucket."""

    def prepare(self, freight: Freight) -> None:
        """Get the machine, connect, install what the job needs, and bring the freight there.

        Raises:
            StepctlError: it cannot be had.
        """

    def start(self, spec: JobSpec) -> ProcessId:
        """Write job.json and start the trainer, which waits for its examples.

        ``spec`` names places of this machine; those of the freight become the ones where it lies there.

        Raises:
            StepctlError: the trainer cannot be started here.
        """

    def find(self) -> ProcessId | None:
        """The trainer's process of the last ``start`` on this job's directory; None when none was started."""

    def send(self, payload: Payload) -> None:
        """Send secrets and examples; called once, by the process that started the job.

        Raises:
            StepctlError: the trainer ended before it had taken them.
        """

    def sync(self) -> None:
        """Bring events, log and result here, as far as they are written. A lost connection is sought again."""

    def alive(self) -> bool:
        """Whether the trainer's process still runs, as far as is known: a lost connection says nothing about it."""

    @property
    def lost(self) -> bool:
        """Whether there is no connection now, so that silence says nothing of the job."""

    def death(self) -> str:
        """How the trainer's process ended, in words; empty when nobody knows."""

    def request(self, what: str) -> None:
        """Ask for ``stop`` (save and end) or ``cancel`` (end without saving)."""

    def signal(self, name: str) -> None:
        """Send ``TERM`` or ``KILL`` to the whole process group of the job."""

    def retrieve(self, lineage: str, known: Sequence[str]) -> list[Path]:
        """Bring the checkpoints that the job saved there, but those that are ``known``, into the job's ``out`` here.

        Returns:
            Their folders here, in the order of their steps; a manifest is in each.

        Raises:
            StepctlError: the machine cannot be reached.
        """

    def release(self, *, keep: bool = False) -> None:
        """Remove what the job left there, and let the machine go. Repeating it does no harm.

        Raises:
            StepctlError: it cannot be confirmed that nothing costs money any more.
        """

    def close(self) -> None:
        """Drop the connection; the job goes on."""
