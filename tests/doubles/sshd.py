"""A real sshd on a free port, without privileges: its own configuration, host key and home; one key opens it.

It runs as whoever runs the tests; root can have it run as another user.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))

SFTP = next(
    (p for p in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server") if Path(p).exists()), "none"
)


def demand() -> str:
    """The sshd program; without it a test is skipped, or fails where CI demands it."""
    if PROGRAM is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("there is no sshd: make system")
    return PROGRAM


def make_key(path: Path) -> str:
    """Write a new Ed25519 key (0600) and its ``.pub``; the public line."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(text)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    path.with_name(f"{path.name}.pub").write_text(f"{line}\n")
    return line


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Sshd:
    """``folder`` gets its files; ``home`` is what a login finds as its home."""

    def __init__(self, folder: Path, *, user: str | None = None, bashrc: str = "") -> None:
        self.folder, self.user = folder, user or getpass.getuser()
        self.uid = pwd.getpwnam(self.user).pw_uid
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True)
        (self.home / ".bashrc").write_text(bashrc)
        self.key = folder / "client_key"
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "sshd.log"
        self.journal = folder / "commands.log"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (self.home / ".ssh/authorized_keys").write_text(make_key(self.key) + "\n")
        self.host_key = make_key(folder / "host_key")
        self.trust(self.port)
        self._configure()
        self.start()

    def trust(self, port: int) -> None:
        """Note the host's key for a port (a relay's)."""
        with self.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{port} {self.host_key}\n")

    def _configure(self) -> None:
        # Each command is noted, then run by a shell that finds the home of this sshd, as its user's login would be.
        login = self.folder / "login"
        login.write_text(
            "#!/bin/bash\n"
            f"export HOME={self.home}; cd\n"
            f'printf "%s\\n" "$SSH_ORIGINAL_COMMAND" >> {self.journal}\n'
            '. "$HOME/.bashrc"\n'
            'exec bash -c "$SSH_ORIGINAL_COMMAND"\n'
        )
        login.chmod(0o755)
        (self.folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.home}/.ssh/authorized_keys\nPidFile none\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPubkeyAuthentication yes\n"
            f"PermitRootLogin yes\nMaxStartups 100\nMaxSessions 20\n"
            f"Subsystem sftp {SFTP}\nForceCommand {login}\nLogLevel VERBOSE\n"
        )

    def start(self) -> None:
        """Start it, and wait until it listens."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        words = [demand(), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        if self.user != getpass.getuser():
            words = self._as_another(words)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": os.environ["PATH"]},
            )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"sshd did not start: {self.log.read_text()}")

    def _as_another(self, words: list[str]) -> list[str]:
        """As a user without privileges, who has a shell in a private /etc/passwd and may read what the tests read."""
        account = pwd.getpwnam(self.user)
        ids = f"{account.pw_uid}:{account.pw_gid}"
        subprocess.run(["chown", "-R", ids, str(self.folder)], check=True)
        passwd = self.folder / "passwd"
        passwd.write_text(f"{self.user}:x:{ids}::{self.home}:/bin/bash\n")
        bind = 'mount --bind "$0" /etc/passwd && exec setpriv "$@"'
        caps = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        who = ["--reuid", str(account.pw_uid), "--regid", str(account.pw_gid), "--clear-groups"]
        return ["unshare", "--mount", "sh", "-c", bind, str(passwd), *who, *caps, *words]

    def stop(self) -> None:
        """End it and every session; what the sessions started goes on, as on a real machine."""
        if self._process is not None:
            for pid in (*_children(self._process.pid), self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def commands(self) -> list[str]:
        """What was run over it so far."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def wrapper(self, name: str = "venv") -> Path:
        """A virtual environment as far as stepctl looks: its Python trains with the stand-in."""
        path = self.folder / name / "bin/python"
        path.parent.mkdir(parents=True)
        path.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            f'"-m stepctl.trainer "*) exec "{sys.executable}" "{ROOT}/tests/doubles/standin.py" "$@" ;;\n'
            f'*) exec "{sys.executable}" "$@" ;;\nesac\n'
        )
        path.chmod(0o755)
        return path.parent.parent

    def __enter__(self) -> Sshd:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _children(pid: int) -> list[int]:
    """Sessions of an sshd: its children and theirs that are sshd as well."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
            if int(fields[1]) == pid and "sshd" in name:
                child = int(path.parent.name)
                found += [*_children(child), child]
    return found
