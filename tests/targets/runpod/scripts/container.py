"""A pod's container: the real start command under a real shell, with the programs that the test gives it."""

from __future__ import annotations

import base64
import contextlib
import getpass
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.targets.runpod.scripts.guarded import BOOTED, LIMITS, TOOLS, make_path, until
from tests.targets.runpod.scripts.stub_api import KEY, POD, StubApi

from stepctl.targets.runpod.command import HOST_KEY_LINE, start_command

START_TOOLS = (*TOOLS, "cat", "base64")
SSH = ("sshd", "ssh-keygen")


def new_key() -> tuple[bytes, str]:
    """A private key in OpenSSH's format and its public half."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public.decode()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Container:
    """One container of a pod; everything that it writes is below ``folder``."""

    def __init__(self, folder: Path, shell: str, api: StubApi) -> None:
        self.folder, self.shell = folder, shell
        self.dir, self.home, self.etc = folder / "dir", folder / "home", folder / "etc"
        self.log, self.port, self.uptime = folder / "container.log", free_port(), folder / "uptime"
        self.path = folder / "bin"
        self.home.mkdir()
        self.etc.mkdir()
        self.client, public = new_key()
        self.at(0)
        self.env = {f"STEPCTL_{name}": str(value) for name, value in LIMITS.items()} | {
            "STEPCTL_TICK": "0.05",
            "STEPCTL_API": api.url,
            "STEPCTL_DIR": str(self.dir),
            "STEPCTL_SHM": str(folder),
            "STEPCTL_HOME": str(self.home),
            "STEPCTL_ETC": str(self.etc),
            "STEPCTL_SBIN": str(folder / "sbin"),
            "STEPCTL_SSH_PORT": str(self.port),
            "STEPCTL_UPTIME": str(self.uptime),
            "STEPCTL_CALL": "1",
            "RUNPOD_POD_ID": POD,
            "RUNPOD_API_KEY": KEY,
            "PUBLIC_KEY": public,
            "HF_TOKEN": "hf_notfortheeyesofasession",
        }
        self.programs: Sequence[str] = ("curl", *SSH)
        self.init: subprocess.Popen[bytes] | None = None
        self._listened_before = 0

    def at(self, seconds: float) -> None:
        """Set the clock."""
        new = self.folder / "uptime.new"
        new.write_text(f"{BOOTED + seconds:.2f} 1.00\n")
        new.rename(self.uptime)

    def script(self, name: str, text: str) -> None:
        """Put a program of this text on the container's path."""
        self.make()
        (self.path / name).write_text(text)
        (self.path / name).chmod(0o755)

    def make(self) -> None:
        if not self.path.exists():
            make_path(self.path, self.shell, [*START_TOOLS, *self.programs])

    def listened(self) -> int:
        """How often an sshd said that it listens."""
        return self.said.count("listening on 0.0.0.0 ") if self.log.exists() else 0

    def start(self) -> Container:
        self.make()
        self._listened_before = self.listened()
        entry = json.loads(start_command())["entrypoint"]
        command = [str(self.path / entry[0]), *entry[1:]]
        with self.log.open("ab") as log:
            self.init = subprocess.Popen(
                command,
                env={**self.env, "PATH": str(self.path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def kill(self) -> None:
        """End every process of the container."""
        if self.init is not None:
            os.killpg(self.init.pid, signal.SIGKILL)
            self.init.wait()
            self.init = None

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def read(self, name: str) -> str:
        found = self.dir / name
        return found.read_text() if found.exists() else ""

    def looks(self) -> int:
        """How often the watchdog has looked."""
        text = self.read("state").partition("\nLOOKS=")[2].partition("\n")[0]
        return int(text) if text.isdigit() else 0

    def says(self, text: str) -> None:
        until(lambda: text in self.said, f"{text!r}\n{self.said}")

    def host_keys(self) -> list[str]:
        """Those that it printed, in order."""
        lines = (line.partition(HOST_KEY_LINE) for line in self.said.splitlines())
        return [rest.strip() for before, mark, rest in lines if mark and not before]

    def processes(self, name: str) -> list[int]:
        """Processes of the container with this word in their command line."""
        assert self.init is not None
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(ValueError, OSError):
                pid = int(folder.name)
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if pid != self.init.pid and os.getpgid(pid) == self.init.pid and name.encode() in b" ".join(words[:2]):
                    found.append(pid)
        return found

    def environment(self, name: str) -> str:
        """The environment of a process of that name, once there is one."""

        def found() -> str:
            for pid in self.processes(name):
                with contextlib.suppress(OSError):
                    text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
                    if pid in self.processes(name):
                        return text
            return ""

        return str(until(found, f"a process {name}"))

    @contextlib.contextmanager
    def login(self, key: bytes | None = None) -> Iterator[paramiko.SSHClient]:
        """Log in as the user who runs the tests, with the host key that the container printed last."""
        until(lambda: self.listened() > self._listened_before, "sshd listens")
        client = paramiko.SSHClient()
        kind, data = self.host_keys()[-1].split()
        known = paramiko.Ed25519Key(data=base64.b64decode(data))
        client.get_host_keys().add(f"[127.0.0.1]:{self.port}", kind, known)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        (self.folder / "client").write_bytes(key or self.client)
        client.connect(
            "127.0.0.1",
            self.port,
            getpass.getuser(),
            key_filename=str(self.folder / "client"),
            allow_agent=False,
            look_for_keys=False,
            timeout=10,
        )
        try:
            yield client
        finally:
            client.close()

    def accepts(self) -> bool:
        """Whether something listens on the port of SSH."""
        with socket.socket() as there:
            return there.connect_ex(("127.0.0.1", self.port)) == 0


def run(client: paramiko.SSHClient, command: str) -> str:
    """What a command prints."""
    return client.exec_command(command, timeout=10)[1].read().decode()
