"""Real pods: PIDs, network, mounts, host name and IPC of their own; a disk that vanishes with them; a real sshd.

The root of a pod is this machine's, read-only underneath, with a layer of its own on top (an overlay on tmpfs). What
belongs to people and to the sandbox is hidden in it.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .gate import Gate
from .inside import Inside
from .network import Block, Wire, find, run
from .pods import Pod
from .relay import Relay

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HIDDEN = ("/root", "/tmp", "/work", "/home", "/mnt", "/media", "/run", "/srv", "/var/tmp", "/var/log")
CLONE_NEWNS = 0x00020000


def own_mounts() -> None:
    """Mounts that this process makes from now on are its own, and vanish with it. Before any thread is started."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    run("mount", "--make-rprivate", "/")


@dataclass
class Running:
    """A pod's container. ``init`` is its first process as this machine counts; ``killed``: we ended it."""

    process: subprocess.Popen[bytes]
    init: int
    killed: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Machines:
    """Starts and ends the containers of pods.

    exited: hears of a container that ended by itself, and its status.
    pods: tells all pods that there are.
    """

    def __init__(self, root: Path, block: Block, show: list[Path]) -> None:
        self.block, self.show = block, [path.resolve() for path in show]
        self.disks, self.volumes = root / "disks", root / "volumes"
        self.disks.mkdir(exist_ok=True)
        self.volumes.mkdir(exist_ok=True)
        self.hidden = [*HIDDEN, str(ROOT), str(root.resolve())]
        self.exited: Callable[[Pod, int], None] = lambda pod, status: None
        self.pods: Callable[[], list[Pod]] = list
        self.api_port = 0
        self.gate: Gate | None = None
        self.inside = Inside(self)
        self._running: dict[str, Running] = {}
        self._wires: dict[str, Wire] = {}
        self._places: dict[str, int] = {}
        self._relays: dict[str, Relay] = {}
        # A pod dies with the thread that made it: this one lives as long as the sandbox.
        self._spawner = ThreadPoolExecutor(1, "spawner")

    # What the cloud asks for; it holds its lock.

    def place(self, pod: Pod) -> tuple[str, int]:
        """An address of the pod's own, and a new port."""
        used = set(self._places.values())
        free = [place for place in range(1, 63) if place not in used]
        if pod.id not in self._places and not free:
            raise RuntimeError("a sandbox has room for 62 pods")
        place = self._places.setdefault(pod.id, free[0] if free else 0)
        wire = self._wires.setdefault(pod.id, self.block.pod(place))
        pod.inner_port = random.randint(10000, 59999)
        gate = self.gate if pod.quirks.ssh_calls else None
        if not pod.quirks.latency and gate is None:
            return wire.address, pod.inner_port
        self._close_relay(pod)
        let_in: Callable[[], bool] = (lambda: gate.connect(pod)) if gate else (lambda: True)
        target = (wire.address, pod.inner_port)
        relay = Relay(self.block.address, target, delay=pod.quirks.latency, let_in=let_in)
        self._relays[pod.id] = relay
        return self.block.address, relay.port

    def start(self, pod: Pod, env: dict[str, str]) -> None:
        """Run its start command in a new container on the pod's disk, which a restart finds as it was."""
        self._spawner.submit(self._start, pod, env).result()

    def open(self, pod: Pod) -> None:
        self._wires[pod.id].open()

    def kill(self, pod: Pod, *, wipe: bool) -> None:
        """End its first process: the kernel then ends all others."""
        running = self._running.pop(pod.id, None)
        if running:
            running.killed = True
            for pid in (running.init, running.process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                if running.done.wait(5):
                    break
            self._wires[pod.id].down()
        if wipe:
            self._wipe(pod)

    def forget(self, pod: Pod) -> None:
        """Its place is free, and what lay on its host is gone; a network volume stays."""
        self._close_relay(pod)
        self._places.pop(pod.id, None)
        self._wires.pop(pod.id, None)
        shutil.rmtree(self.volumes / pod.id, ignore_errors=True)

    def close(self) -> None:
        """End everything at once: pods die with the spawner's process anyway."""
        for running in self._running.values():
            running.killed = True
            running.process.kill()
        for id_, running in self._running.items():
            running.done.wait(5)
            self._wires[id_].down()
        self.block.close()

    # For those who look into pods.

    def running(self, pod: Pod) -> Running | None:
        """Its container, when it runs."""
        found = self._running.get(pod.id)
        return found if found and not found.done.is_set() else None

    def wire(self, pod: Pod) -> Wire:
        return self._wires[pod.id]

    def disk(self, pod: Pod) -> Path:
        """What the pod wrote, at the places where it sees it."""
        return self.disks / pod.id / "u"

    def volume(self, pod: Pod) -> list[tuple[Path, str]]:
        """Folders of this machine that the pod writes to, and where it sees them."""
        if pod.volume:
            return [(self.volumes / pod.volume["volumeId"], pod.volume["path"])]
        persistent = pod.body.get("mounts", {}).get("persistent")
        return [(self.volumes / pod.id, persistent["path"])] if persistent else []

    def _start(self, pod: Pod, env: dict[str, str]) -> None:
        self._make_disk(pod)
        binds: list[str] = []
        for folder, place in self.volume(pod):
            folder.mkdir(parents=True, exist_ok=True)
            binds += [str(folder), place]
        for folder in self.show:
            binds += [f"ro:{folder}", str(folder)]
        command = pod.command() or ["/bin/bash", "-c", (HERE / "start.sh").read_text()]
        apart = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL"]
        init = ["sh", "-c", (HERE / "init.sh").read_text(), "init", str(self.disks / pod.id), pod.id]
        process = subprocess.Popen(
            [find("setpriv"), "--pdeathsig", "KILL", *apart, *init, str(len(binds) // 2), *binds, *command],
            env={"PATH": PATH, "HOME": "/root", **env},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # unshare's own; the pod's joins its output
            start_new_session=True,
        )
        assert process.stdin
        inner = 2222 if pod.quirks.wrong_host_key else 22
        self._wires[pod.id].up(process.pid, pod.inner_port, inner, shut=bool(pod.quirks.sshd))
        running = Running(process, _child(process.pid))
        self._running[pod.id] = running
        process.stdin.write(b"go\n")
        process.stdin.close()
        threading.Thread(target=self._listen, args=(pod, process), daemon=True).start()
        threading.Thread(target=self._watch, args=(pod, running), daemon=True).start()

    def _listen(self, pod: Pod, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        for line in process.stdout:
            pod.log.add("container", line.decode(errors="replace").rstrip("\n"))

    def _watch(self, pod: Pod, running: Running) -> None:
        status = running.process.wait()
        running.done.set()
        if not running.killed:
            self.exited(pod, status)

    def _make_disk(self, pod: Pod) -> None:
        folder = self.disks / pod.id
        if (folder / "u").exists():
            return
        folder.mkdir(exist_ok=True)
        size = f",size={pod.quirks.disk_mb}m" if pod.quirks.disk_mb else ""
        run("mount", "-t", "tmpfs", "-o", f"mode=755{size}", "tmpfs", str(folder))
        upper = folder / "u"
        for name in ("u", "w", "m"):
            (folder / name).mkdir()
        for path in self.hidden:
            hidden = upper / path.lstrip("/")
            if Path(path).is_dir() and not Path(path).is_symlink() and not _is_hidden(upper, hidden):
                hidden.mkdir(parents=True, exist_ok=True)
                hidden.chmod({"/root": 0o700, "/tmp": 0o1777, "/var/tmp": 0o1777}.get(path, 0o755))
                os.setxattr(hidden, "trusted.overlay.opaque", b"y")
        (upper / "etc/ssh").mkdir(parents=True, exist_ok=True)
        (upper / "etc/hosts").write_text(f"127.0.0.1 localhost\n{self._wires[pod.id].address} {pod.id}\n")
        for key in Path("/etc/ssh").glob("ssh_host_*"):  # an image has none
            os.mknod(upper / "etc/ssh" / key.name, stat.S_IFCHR | 0o600, os.makedev(0, 0))
        if pod.quirks.wrong_host_key:
            (upper / ".imposter").touch(mode=0o600)
        if pod.quirks.ssh_calls and self.gate:
            self.gate.install(pod, upper)

    def _wipe(self, pod: Pod) -> None:
        folder = self.disks / pod.id
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)

    def _close_relay(self, pod: Pod) -> None:
        relay = self._relays.pop(pod.id, None)
        if relay:
            relay.close()


def _is_hidden(upper: Path, path: Path) -> bool:
    """Whether a folder above it is opaque already."""
    above = [one for one in path.parents if one != upper and upper in one.parents and one.exists()]
    return any("trusted.overlay.opaque" in os.listxattr(one) for one in above)


def _child(pid: int) -> int:
    """The one child of a process, which may be about to be made."""
    children, until = Path(f"/proc/{pid}/task/{pid}/children"), time.monotonic() + 10
    while not (found := children.read_text().split()):
        assert time.monotonic() < until, "the pod has no first process"
        time.sleep(0.001)
    return int(found[0])
