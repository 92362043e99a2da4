"""A job on a machine behind a real sshd, from its start to what is left of it."""

from __future__ import annotations

import json

import pytest
from tests.targets.ssh.rig import Rig

pytestmark = pytest.mark.sshd


def test_a_job_runs_there_and_its_files_come_here(rig: Rig) -> None:
    machine = rig.machine()
    process = rig.begin(machine)
    assert machine.find() == process
    result = rig.follow(machine)
    assert (result.state, result.step, result.rows_done) == ("done", 4, 8), result.error
    rig.same()
    [folder] = machine.retrieve("main", [])
    assert folder == rig.job.out / result.checkpoint
    state = json.loads((folder / "optimizer.safetensors").read_bytes())
    assert state["trained"] == 8
    machine.release()
    assert not rig.there.path.exists()
    machine.release()
    machine.close()
    assert rig.notices == [n for n in rig.notices if "setting up" in n]
