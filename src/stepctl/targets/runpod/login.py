"""Logging in to a run's pod: its address as it is now, the pinned host key, the run's own key, and nothing else."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from stepctl.runs.pods import PodFile
from stepctl.targets.base import MachineGone, Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import RunpodError
from stepctl.targets.runpod.keys import pin
from stepctl.targets.runpod.ready import Word
from stepctl.targets.ssh.channel import Ended, Stream
from stepctl.targets.ssh.connect import Connection, connect
from stepctl.targets.ssh.errors import BadSetup, LinkLost, LoginRefused, Unreachable
from stepctl.targets.ssh.route import Endpoint

USER = "root"
_DONE = "stepctl-done"


@dataclass
class Login:
    """How a run's pod is reached."""

    api: Api
    file: PodFile
    tell: Teller
    connection: Connection | None = field(default=None, repr=False)

    def endpoint(self) -> Endpoint:
        """Where the pod's sshd is; a public port that changed is asked for again.

        Raises:
            MachineGone: the run has no pod.
            StepctlError: it has no address yet.
        """
        attempt = self.file.load().current
        if attempt is None or attempt.pod is None or attempt.state in ("gone", "refused"):
            raise MachineGone("the run's pod is gone", safe="what was fetched and committed before")
        host, port = attempt.ssh_host, attempt.ssh_port
        with contextlib.suppress(RunpodError):
            pod = self.api.pod(attempt.pod)
            if pod is None:
                # At its old address may be somebody else's by now.
                raise Unreachable(f"the provider does not know pod {attempt.pod} now", next="try again in a moment")
            if pod.address is not None:
                host, port = pod.address.host, pod.address.port
        if host is None or port is None:
            raise BadSetup(f"pod {attempt.pod} has no address", next="try again in a moment")
        if (host, port) != (attempt.ssh_host, attempt.ssh_port):
            change(self.file, attempt, ssh_host=host, ssh_port=port)
        return self._at(host, port)

    def _at(self, host: str, port: int) -> Endpoint:
        pin(self.file, host, port)
        return Endpoint(
            host=host,
            port=port,
            user=USER,
            key_file=str(self.file.client_key),
            known_hosts=str(self.file.known_hosts),
            alone=True,
        )

    def probe(self, host: str, port: int) -> Word:
        """Log in once.

        Raises:
            WrongHostKey: somebody else answers there.
        """
        try:
            connect(self._at(host, port)).close()
        except LoginRefused:
            return "denied"
        except (Unreachable, LinkLost):
            return "closed"
        return "ok"

    def run(self, script: str) -> str:
        """Run a short shell script on the pod; its output.

        Raises:
            SshError: it cannot be reached.
        """
        if self.connection is None or not self.connection.alive:
            self.connection = connect(self.endpoint())
        stream = Stream(self.connection, script)
        said = bytearray()
        with contextlib.suppress(Ended):
            while data := stream.recv(1 << 16):
                said += data
        stream.close()
        return said.decode(errors="replace")

    def does(self, script: str) -> bool:
        """Run a short shell script on the pod; whether all of it succeeded.

        Raises:
            SshError: it cannot be reached.
        """
        return _DONE in self.run(f"{script} && echo {_DONE}").splitlines()

    def close(self) -> None:
        """Drop the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
