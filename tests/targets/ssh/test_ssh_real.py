"""The real trainer in an environment that was made on the machine, with a model that was sent there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.doubles.project import until
from tests.doubles.sshd import Sshd
from tests.targets.ssh.rig import Rig
from tests.trainer.tiny import build_tiny

from stepctl.jobs.directory import JobDir
from stepctl.jobs.spec import ModelSpec, decode_job
from stepctl.targets.base import Freight
from stepctl.targets.local import LocalMachine
from stepctl.targets.ssh.install import Where

pytestmark = [pytest.mark.sshd, pytest.mark.torch]


def test_a_machine_trains_the_same_bits_as_this_one(tmp_path: Path, sshd: Sshd) -> None:
    rig = Rig(tmp_path, sshd, count=4)
    rig.model = build_tiny(tmp_path / "tiny")
    spec = rig.spec()
    machine = rig.machine(where=Where(workdir=str(rig.workdir), python=sys.executable))
    machine.prepare(Freight(model=rig.model, model_digest=spec.identity.revision))
    machine.start(spec)
    assert Path(decode_job(rig.there.job.read_bytes()).model.source).parent == rig.workdir / "models"
    machine.send(rig.payload)
    result = rig.follow(machine, 120)
    assert result.state == "done", result.error
    assert result.exact
    [folder] = machine.retrieve("main", [])
    machine.release()
    machine.close()

    here = JobDir(tmp_path / "here")
    here.path.mkdir()
    local = LocalMachine(here, None, None)
    local.start(rig.spec(model=ModelSpec(source=str(rig.model))))
    local.send(rig.payload)
    until(lambda: not local.alive(), 120)
    [other] = (tmp_path / "checkpoints/main/checkpoints").iterdir()
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
