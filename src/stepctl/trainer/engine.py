"""What the order of a job (``job.py``) asks of whatever trains. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from stepctl.jobs.spec import JobSpec
from stepctl.lineage.records import Manifest
from stepctl.traces.rows import Row


class Step(Struct, frozen=True, kw_only=True):
    """One optimizer step that is done. ``step`` is absolute; ``tokens`` those of its rows."""

    step: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    supervised_tokens: int
    peak_memory_bytes: int


class Loaded(Struct, frozen=True, kw_only=True):
    """Where the model is. ``versions`` goes into the manifest: packages, threads, kernel settings.

    ``repeatable`` False: the model has an operation whose sums the GPU makes in another order each time.
    """

    device: str
    precision: str
    reason: str
    versions: dict[str, str]
    repeatable: bool = True


class NonFinite(Exception):
    """The loss, the gradient or a weight is not finite; ``step`` is the absolute step that was being made."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} is not finite at step {step}")
        self.step, self.what = step, what


class OutOfMemory(Exception):
    """The device or the process has no memory left."""


class Engine(Protocol):
    """Trains one job. The methods are called in this order, each once but ``evaluate`` and ``save``."""

    def imports(self, method: str) -> None:
        """Import what is slow to import and ``method`` needs."""

    def load(self, spec: JobSpec, hf_token: str | None) -> Loaded:
        """Load the base model on the device and give it the seeded, untrained adapter of ``spec.lora``."""

    def restore(self, folder: Path, manifest: Manifest) -> None:
        """Put a verified checkpoint's adapter, optimizer and scheduler in place.

        Raises:
            StepctlError: a file does not fit; its name and what differs are said.
        """

    def init_from(self, folder: Path) -> None:
        """Put the adapter of a PEFT folder in place, for the policy and the reference; the optimizer stays fresh."""

    def evaluate(self, rows: Sequence[Row]) -> float:
        """Mean loss of ``rows`` by the job's method, without dropout; changes no state."""

    def train(self, rows: Sequence[Row], from_step: int, on_step: Callable[[Step], bool]) -> None:
        """Make ceil(len(rows) / grad_accum) steps in file order; ``on_step`` ends the loop by returning False.

        Raises:
            NonFinite: nothing of the step it names may be committed.
            OutOfMemory: no memory left.
        """

    def save(self, folder: Path) -> None:
        """Write the adapter, optimizer, scheduler and trainer state of the last step into ``folder``."""
