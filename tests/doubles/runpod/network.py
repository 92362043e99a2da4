"""The network of one sandbox: a block of addresses of its own, and a pair of interfaces for each pod.

The API listens on the block's first address; pods and their client reach it at the same URL. Each pod is an address
with its SSH on a public port.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

BLOCKS = range(1, 255)
LOCKS = Path("/run/lock")


def run(*command: str, given: str | None = None) -> str:
    """Run a command, which must succeed."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Block:
    """``10.231.N.0/24`` for an N that no other sandbox on this machine has.

    A janitor, which outlives this process whatever ends it, takes the address away and removes ``folders``.
    """

    def __init__(self, folders: list[Path]) -> None:
        LOCKS.mkdir(parents=True, exist_ok=True)
        self.number, self._lock = self._take()
        self.address = f"10.231.{self.number}.1"
        for line in run("ip", "-br", "link").splitlines():
            if line.startswith(f"stp{self.number}x"):  # a killed sandbox's whose namespace the kernel still holds
                subprocess.run(["ip", "link", "del", line.split("@")[0].split()[0]], capture_output=True, check=False)
        run("ip", "addr", "replace", f"{self.address}/32", "dev", "lo")
        self._janitor = self._hire(folders)

    def _take(self) -> tuple[int, IO[str]]:
        for number in BLOCKS:
            lock = (LOCKS / f"stepctl-sandbox-{number}").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            return number, lock
        raise RuntimeError("254 sandboxes run on this machine")

    def _hire(self, folders: list[Path]) -> subprocess.Popen[bytes]:
        """It holds the lock too, so that nobody has this block before it is clean."""
        clean = 'read -r _; ip addr del "$1/32" dev lo; shift; rm -rf -- "$@"'
        command = ["sh", "-c", clean, "janitor", self.address, *map(str, folders)]
        null, fds = subprocess.DEVNULL, (self._lock.fileno(),)
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True, pass_fds=fds
        )

    def close(self) -> None:
        """Give the block back."""
        self._janitor.communicate()

    def pod(self, place: int) -> Wire:
        """The wire of the pod at a place, 1 to 62."""
        return Wire(f"stp{self.number}x{place}", f"10.231.{self.number}.{4 * place + 1}", self.address)


class Wire:
    """A pod's pair of interfaces, and the rules in its network that let traffic in and cut it."""

    def __init__(self, name: str, gateway: str, api: str) -> None:
        self.name, self.gateway, self.api = name, gateway, api
        self.address = f"{gateway.rsplit('.', 1)[0]}.{int(gateway.rsplit('.', 1)[1]) + 1}"
        self.pid = 0

    def up(self, pid: int, port: int, inner: int, *, shut: bool) -> None:
        """Connect the network namespace of a process; SSH comes in at ``port`` and goes to ``inner``."""
        self.pid = pid
        self._wait_for_namespace()
        self.down()
        host = f"link add {self.name} type veth peer name eth0 netns {pid}\n"
        run("ip", "-batch", "-", given=f"{host}addr add {self.gateway}/30 dev {self.name}\nlink set {self.name} up\n")
        pod = f"link set lo up\naddr add {self.address}/30 dev eth0\nlink set eth0 up\n"
        # No route to anywhere else: what a pod asks of the world fails at once.
        network = f"{self.api.rsplit('.', 1)[0]}.0/24"
        self._inside("ip", "-batch", "-", given=f"{pod}route add {network} via {self.gateway}\n")
        gate = "tcp dport { 22, 2222 } reject with tcp reset;" if shut else ""
        self._rules(
            f"""table ip pod {{
              chain nat {{ type nat hook prerouting priority -100; tcp dport {port} redirect to :{inner}; }}
              chain gate {{ type filter hook input priority 0; {gate} }}
              chain cut_in {{ type filter hook prerouting priority -300; }}
              chain cut_out {{ type filter hook postrouting priority 300; }}
            }}"""
        )

    def down(self) -> None:
        """The kernel drops a dead namespace some milliseconds late, and the name is wanted at once."""
        subprocess.run(["ip", "link", "del", self.name], capture_output=True, check=False)

    def open(self) -> None:
        """Let SSH in."""
        self._rules("flush chain ip pod gate")

    def cut(self, what: str, api_port: int) -> None:
        """Drop packets without a word: of the ``client`` (SSH), of the ``api``, or ``all``."""
        api = f"tcp {{}} {api_port}"
        matches = {
            "client": ("ip saddr != " + self.api, "ip daddr != " + self.api),
            "api": (f"ip saddr {self.api} {api.format('sport')}", f"ip daddr {self.api} {api.format('dport')}"),
            "all": ("iifname eth0", "oifname eth0"),
        }
        inward, outward = matches[what]
        self._rules(f"add rule ip pod cut_in iifname eth0 {inward} drop\nadd rule ip pod cut_out {outward} drop")

    def heal(self) -> None:
        self._rules("flush chain ip pod cut_in\nflush chain ip pod cut_out")

    def _inside(self, *command: str, given: str) -> None:
        run("nsenter", f"--net=/proc/{self.pid}/ns/net", *command, given=given)

    def _rules(self, rules: str) -> None:
        self._inside("nft", "-f", "-", given=rules)

    def _wait_for_namespace(self) -> None:
        own, until = Path("/proc/self/ns/net").readlink(), time.monotonic() + 10
        while Path(f"/proc/{self.pid}/ns/net").readlink() == own:
            assert time.monotonic() < until, "the pod got no network of its own"
            time.sleep(0.001)


def find(tool: str) -> str:
    """The full path of a tool, also of one in sbin."""
    return shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin") or tool
