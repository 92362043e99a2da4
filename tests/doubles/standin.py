"""A trainer for tests of everything around training: the real order of a job, real commits, an engine without torch.

Run as ``standin.py -m stepctl.trainer JOBDIR``, in the place of a Python. ``faults.json`` in the project's folder, or
in ``STANDIN_FOLDER``, says what goes wrong: ``kill_at`` / ``pause_at`` (a phase, or ``step:N``; the file ``go`` beside
it lets it go on), ``step_sec`` (how long a step takes), ``engine: "torch"`` for the real one, ``nan_at``, ``oom_at``,
``raise_at`` (a step; the error quotes an example), ``versions`` (what it says of itself in manifests), ``repeatable``,
``full_at`` (rows: the disk is full when so many are saved). ``job.pgid`` there holds the newest job's process group.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepctl.base.errors import UsageError
from stepctl.base.files import sha256_bytes
from stepctl.jobs.directory import JobDir
from stepctl.jobs.events import AnyEvent, EventWriter, Progress, Status
from stepctl.jobs.spec import JobSpec
from stepctl.lineage.records import Manifest
from stepctl.traces.rows import Row
from stepctl.trainer.engine import Engine, Loaded, NonFinite, OutOfMemory, Step
from stepctl.trainer.run import run_job


class StandIn:
    """Its adapter is a hash chain over the rows that were trained, so that a lost or doubled row shows."""

    def __init__(self, faults: dict[str, Any]) -> None:
        self.faults, self.chain, self.trained = faults, "start", 0

    def imports(self, method: str) -> None:
        pass

    def load(self, spec: JobSpec, hf_token: str | None) -> Loaded:
        self.group = spec.train.grad_accum
        self.rate = spec.train.learning_rate
        if spec.train.gpu_ids:
            raise UsageError("GPU 0 is not there: a stand-in has none", next="list no GPUs", code="no_device")
        versions = {"standin": "1", **self.faults.get("versions", {})}
        repeatable = self.faults.get("repeatable", True)
        return Loaded(device="cpu", precision="fp32", reason="a stand-in", versions=versions, repeatable=repeatable)

    def restore(self, folder: Path, manifest: Manifest) -> None:
        state = json.loads((folder / "optimizer.safetensors").read_bytes())
        self.chain, self.trained = state["chain"], state["trained"]

    def init_from(self, folder: Path) -> None:
        self.chain = sha256_bytes((folder / "adapter_model.safetensors").read_bytes())

    def evaluate(self, rows: Sequence[Row]) -> float:
        return 10.0 / (1 + self.trained)

    def train(self, rows: Sequence[Row], from_step: int, on_step: Callable[[Step], bool]) -> None:
        for i in range(0, len(rows), self.group):
            step = from_step + i // self.group + 1
            time.sleep(self.faults.get("step_sec", 0))
            self._fail(step)
            for row in rows[i : i + self.group]:
                for text in row.texts:
                    data = struct.pack(f"{len(text.input_ids)}i", *text.input_ids)
                    self.chain = sha256_bytes(self.chain.encode() + data)
                self.trained += 1
            tokens = sum(row.tokens for row in rows[i : i + self.group])
            if not on_step(
                Step(
                    step=step,
                    loss=1 / step,
                    learning_rate=self.rate,
                    grad_norm=1.0,
                    tokens=tokens,
                    supervised_tokens=sum(row.supervised for row in rows[i : i + self.group]),
                    peak_memory_bytes=1,
                )
            ):
                return

    def _fail(self, step: int) -> None:
        if self.faults.get("nan_at") == step:
            raise NonFinite(step, "the loss")
        if self.faults.get("oom_at") == step:
            raise OutOfMemory("can't allocate memory")
        if self.faults.get("raise_at") == step:
            raise ValueError(f"cannot use {self.faults['text']}")

    def save(self, folder: Path) -> None:
        if self.faults.get("full_at") == self.trained:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        (folder / "adapter_model.safetensors").write_text(self.chain)
        (folder / "adapter_config.json").write_text("{}")
        state = {"chain": self.chain, "trained": self.trained}
        (folder / "optimizer.safetensors").write_text(json.dumps(state))


def faulty(write: EventWriter, faults: dict[str, Any], folder: Path) -> Callable[[AnyEvent], None]:
    """Writes each event; then dies or waits where the faults say so."""

    def emit(event: AnyEvent) -> None:
        write(event)
        name = event.phase if isinstance(event, Status) else f"step:{event.step}" if isinstance(event, Progress) else ""
        if name and faults.get("kill_at") == name:
            os.kill(os.getpid(), signal.SIGKILL)
        if name and faults.get("pause_at") == name:
            deadline = time.monotonic() + 60
            while not (folder / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.01)

    return emit


def main() -> None:
    job_dir = JobDir(Path(sys.argv[-1]))
    project = job_dir.path.parent.parent
    if job_dir.job.exists():
        (project / "job.pgid").write_text(str(os.getpgid(0)))  # for those who kill it
    folder = Path(os.environ.get("STANDIN_FOLDER", project))
    path = folder / "faults.json"
    faults = json.loads(path.read_text()) if path.exists() else {}
    if faults.get("kill_at") == "start":
        os.kill(os.getpid(), signal.SIGKILL)

    def engine() -> Engine:
        if faults.get("engine") == "torch":
            from stepctl.trainer.torch_engine import TorchEngine

            return TorchEngine()
        return StandIn(faults)

    emit = faulty(EventWriter(job_dir.events), faults, folder)
    code = run_job(job_dir, sys.stdin.buffer, engine, emit)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
