"""From the recorded settings of an ssh target to a machine."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field

from stepctl.jobs.directory import JobDir
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Teller
from stepctl.targets.ssh.install import Where
from stepctl.targets.ssh.machine import SshMachine
from stepctl.targets.ssh.route import Endpoint


class _Options(Struct, frozen=True, kw_only=True):
    """``config.model.SshTarget`` as a run's record has it; what a newer release added is passed over."""

    host: str
    port: int | None = None
    user: str | None = None
    key: str | None = None
    known_hosts: str | None = None
    workdir: str = "~/.stepctl"
    python: str = "python3"
    venv: str | None = None
    env: dict[str, str] = field(default_factory=dict)


def open_ssh(
    options: Mapping[str, object], job: JobDir, run: str, process: ProcessId | None, tell: Teller, staged: bool
) -> SshMachine:
    """A machine for one run; nothing is connected yet."""
    told = msgspec.convert(dict(options), _Options)
    endpoint = Endpoint(host=told.host, port=told.port, user=told.user, key_file=told.key, known_hosts=told.known_hosts)
    where = Where(workdir=told.workdir, python=told.python, venv=told.venv, env=told.env)
    return SshMachine(job, run, lambda: endpoint, where, staged=staged, tell=tell, process=process)
