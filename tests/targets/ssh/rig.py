"""One run on a machine behind a real sshd, with the stand-in for a trainer; everything a test wants to know of it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.doubles.project import rows, tokenizer_folder, until
from tests.doubles.relay import Relay
from tests.doubles.sshd import Sshd

from stepctl import __version__
from stepctl.base.files import sha256_bytes
from stepctl.config.model import LoraSettings, TrainSettings
from stepctl.jobs.directory import JobDir, Payload
from stepctl.jobs.events import AnyEvent
from stepctl.jobs.result import JobResult
from stepctl.jobs.spec import JOB_VERSION, JobSpec, ModelSpec, TraceFile, TraceSpec
from stepctl.lineage.records import ROOT, Identity
from stepctl.models.resolve import resolve_model
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Freight, Teller
from stepctl.targets.ssh.connect import Limits
from stepctl.targets.ssh.install import Where
from stepctl.targets.ssh.machine import Pace, SshMachine
from stepctl.targets.ssh.route import Endpoint

RUN = "20261130T041502917-1f9c0a"
SENTINEL = "zqj-sentinel-of-the-trace"
QUICK = Pace(poll=0.02, look=0.05, renew=0.1, launch=30.0)
PATIENT = Limits()


class Rig:
    """``machine()`` makes a new client each time, as another process would have."""

    def __init__(self, folder: Path, sshd: Sshd, *, count: int = 8, run: str = RUN) -> None:
        self.folder, self.sshd, self.run = folder, sshd, run
        self.job = JobDir(folder / "runs" / run)
        self.job.path.mkdir(parents=True)
        self.venv = sshd.folder / "venv" if (sshd.folder / "venv").exists() else sshd.wrapper()
        self.workdir = sshd.home / f"work-{folder.name}"
        self.there = JobDir(self.workdir / "runs" / run)
        model = folder / "model"
        self.model = model if model.exists() else tokenizer_folder(model)
        data = rows(count)
        data[0]["messages"][0]["content"] += f" {SENTINEL}"
        self.trace = "".join(json.dumps(row) + "\n" for row in data).encode()
        self.notices: list[str] = []
        self.events: list[AnyEvent] = []
        self.endpoint = Endpoint("127.0.0.1", sshd.port, sshd.user, str(sshd.key), str(sshd.known_hosts))

    def through(self, relay: Relay) -> Rig:
        """Clients made from now on go through a relay."""
        self.sshd.trust(relay.port)
        self.endpoint = replace(self.endpoint, port=relay.port)
        return self

    def machine(self, process: ProcessId | None = None, **kw: Any) -> SshMachine:
        kw = {"staged": True, "limits": PATIENT, "pace": QUICK, **kw}
        where = kw.pop("where", Where(workdir=str(self.workdir), venv=str(self.venv)))
        tell = Teller(self._notice, self.events.append)
        return SshMachine(self.job, self.run, lambda: self.endpoint, where, tell=tell, process=process, **kw)

    def _notice(self, text: str) -> None:
        if "setting up stepctl" not in text:
            self.notices.append(text)

    def faults(self, **faults: Any) -> None:
        """What goes wrong in the trainer there."""
        self.workdir.mkdir(exist_ok=True)
        (self.workdir / "go").unlink(missing_ok=True)
        (self.workdir / "faults.json").write_text(json.dumps(faults))

    def go(self) -> None:
        (self.workdir / "go").touch()

    def spec(self, **changes: Any) -> JobSpec:
        model = resolve_model(str(self.model), None, None)
        identity = Identity(
            model=str(self.model),
            revision=model.revision,
            method="sft",
            r=8,
            alpha=16,
            dropout=0.0,
            target_modules=("q_proj",),
            vocab_size=model.vocab_size,
        )
        trace = TraceSpec(
            sha256=sha256_bytes(self.trace),
            files=(TraceFile(name="t.jsonl", bytes=len(self.trace)),),
            rows_total=self.trace.count(b"\n"),
        )
        base: dict[str, Any] = {
            "version": JOB_VERSION,
            "release": __version__,
            "run": self.run,
            "identity": identity,
            "model": ModelSpec(source=str(self.model)),
            "lora": LoraSettings(),
            "train": TrainSettings(grad_accum=2),
            "trace": trace,
            "eval": None,
            "bucket": str(self.folder / "checkpoints"),
            "lineage": "main",
            "parent": ROOT,
            "parent_sha256": None,
            "from_step": 0,
            "new_root": False,
            "key": None,
            "keep_checkpoints": 3,
            "attempt": os.urandom(8).hex(),
        }
        return JobSpec(**{**base, **changes})

    @property
    def payload(self) -> Payload:
        return Payload(trace=(self.trace,), hf_token="hf_secret_token_of_the_test")

    def begin(self, machine: SshMachine, **changes: Any) -> ProcessId:
        """All that a call does before it follows."""
        machine.prepare(Freight())
        process = machine.start(self.spec(**changes))
        machine.send(self.payload)
        return process

    def follow(self, machine: SshMachine, seconds: float = 60) -> JobResult:
        """Until the job is over here; its result."""
        import msgspec

        def over() -> bool:
            machine.sync()
            return self.job.exit_code.exists()

        until(over, seconds)
        assert not machine.alive()
        return msgspec.json.decode(self.job.result.read_bytes(), type=JobResult)

    def same(self) -> None:
        """The files here are those of the machine."""
        for name in ("events.jsonl", "result.json", "exit_code"):
            assert (self.job.path / name).read_bytes() == (self.there.path / name).read_bytes(), name
