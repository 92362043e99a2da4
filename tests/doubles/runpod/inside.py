"""Looking and reaching into pods: their processes, network and disk. The verbs of the control address."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .network import find
from .pods import Pod
from .relay import Relay

if TYPE_CHECKING:
    from .machines import Machines


class Inside:
    """``POD_VERBS`` take a pod, ``VERBS`` none."""

    POD_VERBS = ("cut", "freeze", "heal", "processes", "signal", "execute", "written")
    VERBS = ("expose", "search")

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self._relays: dict[int, Relay] = {}

    def cut(self, pod: Pod, what: str = "all") -> None:
        """Drop packets silently: of the ``client`` (SSH), of the ``api``, or ``all``."""
        self.machines.wire(pod).cut(what, self.machines.api_port)

    def freeze(self, pod: Pod) -> int:
        """The kernel still takes what the client sends, but its sshd does nothing: how many processes stopped."""
        return self.signal(pod, "^sshd|/sshd|sshd-session", "STOP")

    def heal(self, pod: Pod) -> None:
        """Undo ``cut`` and ``freeze``."""
        self.machines.wire(pod).heal()
        self.signal(pod, "^sshd|/sshd|sshd-session", "CONT")

    def processes(self, pod: Pod) -> list[dict[str, Any]]:
        """The pod's processes: ``pid`` as this machine counts, ``inner`` as the pod does, and their command."""
        running = self.machines.running(pod)
        if not running:
            return []
        try:
            own = Path(f"/proc/{running.init}/ns/pid").readlink()
        except OSError:
            return []
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns/pid").readlink() == own:
                    found.append(_process(folder))
            except OSError:
                continue  # it ended meanwhile
        return sorted((one for one in found if one["state"] != "Z"), key=lambda one: one["inner"])

    def signal(self, pod: Pod, match: str, name: str = "KILL") -> int:
        """Send a signal to the processes whose command matches: how many there were."""
        found = [one for one in self.processes(pod) if re.search(match, one["command"])]
        for one in found:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(one["pid"], getattr(signal, f"SIG{name}"))
        return len(found)

    def execute(self, pod: Pod, command: list[str], given: str = "", seconds: float = 30) -> dict[str, Any]:
        """Run a command in the pod, with its container's environment: ``code``, ``out``, ``err``."""
        running = self.machines.running(pod)
        if not running:
            raise RuntimeError(f"pod {pod.name} does not run")
        _wait_for_root(Path(f"/proc/{running.init}/root"))
        pairs = Path(f"/proc/{running.init}/environ").read_bytes().split(b"\0")
        env = dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)
        enter = [find("nsenter"), "--target", str(running.init), "--all", "--root", "--", *command]
        done = subprocess.run(
            enter, env=env, input=given, capture_output=True, text=True, timeout=seconds, errors="replace", check=False
        )
        return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

    def written(self, pod: Pod) -> list[str]:
        """The files that the pod wrote to its disk."""
        disk = self.machines.disk(pod)
        return sorted(f"/{path.relative_to(disk)}" for path in disk.rglob("*") if path.is_file())

    def search(self, text: str) -> list[str]:
        """The files on disks and volumes, and lines of logs, that hold a text: ``POD:/path``, ``POD:log``."""
        found = []
        cloud_pods = self.machines.pods()
        for pod in cloud_pods:
            found += [f"{pod.name}:{path}" for path in _holding(self.machines.disk(pod), text)]
            running = self.machines.running(pod)
            if running:
                memory = _holding(Path(f"/proc/{running.init}/root/dev/shm"), text)
                found += [f"{pod.name}:/dev/shm{path}" for path in memory]
            lines = [line for source in ("container", "system") for line in pod.log.texts(source)]
            found += [f"{pod.name}:log"] * any(text in line for line in lines)
        return found + [f"volume:{path}" for path in _holding(self.machines.volumes, text)]

    def expose(self, port: int) -> str:
        """Make a port of 127.0.0.1 reachable for pods, under the API's address: its URL."""
        host = self.machines.block.address
        if port not in self._relays:
            self._relays[port] = Relay(host, ("127.0.0.1", port), port=port)
        return f"http://{host}:{port}"


def _wait_for_root(root: Path, seconds: float = 10) -> None:
    """Until the container's first process has left this machine's root behind."""
    until = time.monotonic() + seconds
    while root.stat().st_dev == Path("/").stat().st_dev or (root / ".old").exists():
        assert time.monotonic() < until, "the container does not come up"
        time.sleep(0.002)


def _process(folder: Path) -> dict[str, Any]:
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    inner = int(status["NSpid"].split()[-1])
    return {"pid": int(folder.name), "inner": inner, "state": status["State"][0], "command": command or status["Name"]}


def _holding(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text; it goes over a pipe, so that it is in nobody's arguments."""
    command = ["grep", "-rlaF", "-D", "skip", "-f", "-", "."]
    if not folder.is_dir():
        return []
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False)
    return [line.removeprefix(".") for line in done.stdout.splitlines()]
