"""What comes over SSH as calls: told, and held before and after their effect."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.runpod import Fault, Sandbox, levels
from tests.doubles.runpod.asking import body, client

pytestmark = pytest.mark.pods
MARKED = "printf '\\nstepctl-says\\n'; "


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    levels.need()
    with Sandbox(tmp_path_factory.mktemp("runpod"), pods="netns", python=True) as sandbox:
        yield sandbox


class Shell:
    """A pod, and ssh to it."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.key, self.folder = folder / "id", folder
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        with client(sandbox) as api:
            env = {"PUBLIC_KEY": self.key.with_suffix(".pub").read_text()}
            self.id = api.post("/pods", json=body(env=env, ports=["22/tcp"])).json()["id"]
            while (direct := api.get(f"/pods/{self.id}").json()["ssh"]["direct"]) is None:
                time.sleep(0.02)
        self.at = ["-p", str(direct["port"]), f"root@{direct['host']}"]
        while self.start("true").wait() != 0:
            time.sleep(0.05)

    def start(self, command: str) -> subprocess.Popen[str]:
        options = ["-q", "-F", "none", "-i", str(self.key), "-o", f"UserKnownHostsFile={self.folder}/known"]
        options += ["-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(["ssh", *options, *self.at, command], **pipes)


@pytest.fixture
def sandbox(running: Sandbox) -> Iterator[Sandbox]:
    running.reset()
    running.quirks(ssh_calls=True)
    yield running
    running.check()


@pytest.fixture
def shell(sandbox: Sandbox, tmp_path: Path) -> Shell:
    return Shell(sandbox, tmp_path)


def test_commands_pass_through_unchanged_and_are_told(sandbox: Sandbox, shell: Shell) -> None:
    before = len(sandbox.calls("^SSH"))
    process = shell.start(f"{MARKED} tr a-z A-Z; exit 7")
    out, _ = process.communicate("abc\n")
    assert (process.returncode, out) == (7, "\nstepctl-says\nABC\n")
    assert [call.target for call in sandbox.calls("^SSH")[before:]] == ["SSH connect", "SSH shell"]
    process = shell.start("cat; exit 3")
    assert process.communicate("plain\n")[0] == "plain\n" and process.returncode == 3


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_command_is_held(sandbox: Sandbox, shell: Shell, when: Any, lost: bool) -> None:
    sandbox.fault(Fault("^SSH shell$", when=when, hold=True))
    process = shell.start(f"{MARKED} touch /made; echo made")
    assert sandbox.wait_held(unless=lambda: process.poll() is not None)
    assert ("/made" in sandbox.written(shell.id)) == (when == "after")
    sandbox.release(lost=lost)
    out, _ = process.communicate(timeout=10)
    assert out.endswith("made\n") == (not lost)
    assert ("/made" in sandbox.written(shell.id)) == (when == "after" or not lost)


def test_a_connection_is_held(sandbox: Sandbox, shell: Shell) -> None:
    sandbox.fault(Fault("^SSH connect$", hold=True))
    process = shell.start("true")
    assert sandbox.wait_held(unless=lambda: process.poll() is not None)
    process.kill()
    process.communicate()
    sandbox.release()
