"""Pods that are machines of their own: SSH, disks, networks, what ends them, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.doubles.runpod import Fault, Sandbox, levels

pytestmark = pytest.mark.pods
CREATES = r"^POST /v2/pods$"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    levels.need()
    with Sandbox(tmp_path_factory.mktemp("runpod"), pods="netns") as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(running: Sandbox) -> Iterator[Sandbox]:
    running.reset()
    yield running
    running.check()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


class Account:
    """A client of the API, and of its pods over SSH."""

    def __init__(self, sandbox: Sandbox, key: Path, folder: Path) -> None:
        self.key, self.known = key, folder / "known_hosts"
        headers = {"Authorization": f"Bearer {sandbox.key}", "User-Agent": "tests/1"}
        self.http = httpx.Client(base_url=sandbox.url, headers=headers, timeout=10)
        self.sandbox = sandbox

    def create(self, name: str = "one", env: dict[str, str] | None = None, **more: Any) -> str:
        env = {"PUBLIC_KEY": self.key.with_suffix(".pub").read_text(), **(env or {})}
        given = {"name": name, "image": "i", "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 1}, "disk": 50}
        answer = self.http.post("/pods", json={**given, "ports": ["22/tcp"], "env": env, **more})
        assert answer.status_code == 201, answer.text
        id_: str = answer.json()["id"]
        return id_

    def get(self, id_: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.http.get(f"/pods/{id_}").json()
        return shown

    def ssh(self, id_: str, command: str, *options: str, given: str = "") -> subprocess.CompletedProcess[str]:
        direct = self.get(id_)["ssh"]["direct"]
        known = f"UserKnownHostsFile={self.known}"
        ssh = ["ssh", "-q", "-F", "none", "-i", str(self.key), "-o", known, "-o", "StrictHostKeyChecking=accept-new"]
        ssh += ["-o", "BatchMode=yes", "-o", "ConnectTimeout=3", *options, "-p", str(direct["port"])]
        ssh += [f"root@{direct['host']}", command]
        return subprocess.run(ssh, input=given, capture_output=True, text=True, timeout=30, check=False)

    def ready(self, id_: str, *options: str) -> None:
        eventually(lambda: self.ssh(id_, "true", *options).returncode == 0)


@pytest.fixture
def account(sandbox: Sandbox, key: Path, tmp_path: Path) -> Account:
    return Account(sandbox, key, tmp_path)


def eventually(holds: Callable[[], Any], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.03)


def script(text: str) -> str:
    return json.dumps({"entrypoint": ["sh", "-c", text], "cmd": []})


def test_a_pod_is_a_machine_of_its_own(sandbox: Sandbox, account: Account) -> None:
    secret = {"name": "greeting", "value": "from the secret"}
    account.http.post("/account/secrets", json=secret)
    id_ = account.create(env={"GREETING": "{{ RUNPOD_SECRET_greeting }}"})
    account.ready(id_)
    seen = account.ssh(id_, "hostname; ls -a /root /tmp /work /home 2>&1; ls /etc/ssh; ps ax | wc -l").stdout
    assert seen.splitlines()[0] == id_
    assert ".ssh" in seen and "pyenv" not in seen and "pytest" not in seen
    assert account.ssh(id_, "touch /usr/bin/mine").returncode == 0
    assert not Path("/usr/bin/mine").exists()
    env = account.ssh(id_, "tr '\\0' '\\n' </proc/1/environ").stdout
    expected = {"GREETING=from the secret", f"RUNPOD_POD_ID={id_}", "RUNPOD_DC_ID=EU-RO-1", "RUNPOD_GPU_COUNT=1"}
    assert expected <= set(env.splitlines())
    assert "RUNPOD" not in account.ssh(id_, "env").stdout  # as in the real images
    lines = sandbox.logs(id_)
    print_ = account.ssh(id_, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").stdout.strip()
    assert print_ in lines and account.get(id_)["env"]["GREETING"].startswith("{{")


def test_delete_ends_every_process(sandbox: Sandbox, account: Account) -> None:
    id_ = account.create()
    account.ready(id_)
    account.ssh(id_, "setsid -f sleep 1000 </dev/null >/dev/null 2>&1")
    pids = [one["pid"] for one in sandbox.processes(id_)]
    assert len(pids) >= 3
    assert account.http.delete(f"/pods/{id_}").status_code == 204
    assert sandbox.processes(id_) == [] and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    block = sandbox.url.split("//")[1].split(".1:")[0]
    assert interfaces().count(block) == 1  # that of the API


def test_a_pod_ends_itself_with_its_own_key(sandbox: Sandbox, account: Account) -> None:
    call = f"""curl -s -o /dev/null -w 'status %{{http_code}}\\n' -H "Authorization: Bearer $RUNPOD_API_KEY" \\
      -H 'Content-Type: application/json' -d '{{"action": "terminate"}}' {sandbox.url}/pods/$RUNPOD_POD_ID/action
    sleep 1000"""
    id_ = account.create(args=script(call))
    sandbox.wait_event("ended")
    assert [(gone["id"], gone["endedBy"]) for gone in sandbox.gone()] == [(id_, id_)]
    eventually(lambda: sandbox.processes(id_) == [])
    assert sandbox.logs(id_) == ["status 204"]
    assert sandbox.calls("action$", who=id_)[0].effect == f"ended {id_}"


def test_a_container_that_exits_runs_again_on_the_same_disk(sandbox: Sandbox, account: Account) -> None:
    sandbox.quirks(restart=0.05)
    id_ = account.create(args=script("echo again >>/root/starts; cat /root/starts | wc -l; [ -e /go ] || exit 3"))
    sandbox.wait_event("restarted", count=2)
    assert account.get(id_)["status"] == "RUNNING"
    assert sandbox.logs(id_)[:2] == ["1", "2"]
    assert sandbox.events("exited")[0].note == "code 3"
    assert account.http.post(f"/pods/{id_}/action", json={"action": "stop"}).json()["status"] == "EXITED"
    assert sandbox.processes(id_) == []


def test_a_loop_fails_at_once_for_ever(sandbox: Sandbox, account: Account) -> None:
    sandbox.fault(Fault(CREATES, pod={"loop": True, "restart": 0.02}))
    id_ = account.create()
    sandbox.wait_event("restarted", count=3)
    assert account.get(id_)["status"] == "RUNNING"
    assert "start command failed" in sandbox.logs(id_)[0]


def test_stop_wipes_the_disk_and_start_changes_the_port(sandbox: Sandbox, account: Account) -> None:
    mounts = {"network": [{"volumeId": "sandboxvol1", "path": "/workspace"}]}
    id_ = account.create(mounts=mounts)
    account.ready(id_)
    account.ssh(id_, "echo kept-sentinel >/workspace/kept; echo lost-sentinel | tee /root/lost >/dev/shm/fast")
    assert sandbox.search("kept-sentinel") == ["volume:/sandboxvol1/kept"]
    assert sandbox.search("lost-sentinel") == ["one:/root/lost", "one:/dev/shm/fast"]
    assert "/root/lost" in sandbox.written(id_)
    before = account.get(id_)["ssh"]["direct"]
    account.http.post(f"/pods/{id_}/action", json={"action": "stop"})
    assert sandbox.search("lost-sentinel") == []
    account.http.post(f"/pods/{id_}/action", json={"action": "start"})
    assert account.get(id_)["ssh"]["direct"]["port"] != before["port"]
    account.ready(id_, "-o", "StrictHostKeyChecking=no")
    assert account.ssh(id_, "cat /workspace/kept; ls /root").stdout == "kept-sentinel\n"
    account.http.delete(f"/pods/{id_}")
    assert account.create("two", mounts=mounts)
    eventually(lambda: sandbox.execute("two", "cat", "/workspace/kept") == "kept-sentinel\n")


def test_a_slow_boot_and_a_late_sshd(sandbox: Sandbox, account: Account) -> None:
    sandbox.fault(Fault(CREATES, pod={"boot": 60, "address": 5, "sshd": 20}))
    id_ = account.create()
    assert sandbox.processes(id_) == [] and account.get(id_)["ssh"]["direct"] is None
    sandbox.advance(61)
    assert account.get(id_)["ssh"]["direct"] is None
    sandbox.advance(5)
    eventually(lambda: any("ready" in line for line in sandbox.logs(id_)))
    assert account.ssh(id_, "true").returncode == 255
    sandbox.advance(15)
    account.ready(id_)


def test_the_wrong_host_key(sandbox: Sandbox, account: Account) -> None:
    sandbox.fault(Fault(CREATES, pod={"wrong_host_key": True}))
    id_ = account.create()
    account.ready(id_)
    own = account.ssh(id_, "cat /etc/ssh/ssh_host_ed25519_key.pub").stdout.split()[1]
    assert own and own not in account.known.read_text()


def test_a_network_that_is_cut_silently(sandbox: Sandbox, account: Account) -> None:
    id_ = account.create()
    account.ready(id_)
    direct = account.get(id_)["ssh"]["direct"]
    ask = f'curl -s -m 0.3 -H "Authorization: Bearer $RUNPOD_API_KEY" {sandbox.url}/pods/{id_} && echo reached'

    def reached() -> tuple[bool, bool]:
        """Whether SSH reaches the pod, and the pod the API."""
        try:
            with socket.create_connection((direct["host"], direct["port"]), 0.3) as connection:
                ssh = connection.recv(3) == b"SSH"
        except TimeoutError:
            ssh = False
        out = sandbox.ask("execute", pod=id_, command=["sh", "-c", ask])["out"]
        return ssh, out.endswith("reached\n")

    for what, left in (("client", (False, True)), ("api", (True, False)), ("all", (False, False))):
        sandbox.cut(id_, what)
        assert reached() == left, what
        sandbox.heal(id_)
    assert reached() == (True, True)


def test_a_frozen_connection(sandbox: Sandbox, account: Account) -> None:
    id_ = account.create()
    account.ready(id_)
    direct = account.get(id_)["ssh"]["direct"]
    sandbox.freeze(id_)
    with socket.create_connection((direct["host"], direct["port"]), 1) as connection:
        connection.sendall(b"SSH-2.0-test\r\n")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(3)
        sandbox.heal(id_)
        connection.settimeout(10)
        assert connection.recv(3) == b"SSH"
    ask = f'curl -s -m 0.3 -H "Authorization: Bearer $RUNPOD_API_KEY" {sandbox.url}/pods/{id_}'
    sandbox.freeze(id_, "api")
    assert sandbox.ask("execute", pod=id_, command=["sh", "-c", ask])["code"] == 28
    assert account.get(id_)["status"] == "RUNNING"
    sandbox.heal(id_)
    assert json.loads(sandbox.execute(id_, "sh", "-c", ask))["id"] == id_


def test_the_rest_of_the_world_is_out_of_reach(sandbox: Sandbox, account: Account) -> None:
    id_ = account.create()
    start = time.monotonic()
    assert sandbox.ask("execute", pod=id_, command=["curl", "-s", "http://192.0.2.1/"])["code"] == 7
    assert time.monotonic() - start < 5


def test_latency(sandbox: Sandbox, account: Account) -> None:
    sandbox.fault(Fault(CREATES, pod={"latency": 0.1}))
    id_ = account.create()
    account.ready(id_)
    direct = account.get(id_)["ssh"]["direct"]
    start = time.monotonic()
    with socket.create_connection((direct["host"], direct["port"]), 1) as connection:
        assert connection.recv(3) == b"SSH" and time.monotonic() - start > 0.1


def test_a_full_disk(sandbox: Sandbox, account: Account) -> None:
    sandbox.fault(Fault(CREATES, pod={"disk_mb": 8}))
    id_ = account.create()
    account.ready(id_)
    assert "No space left" in account.ssh(id_, "head -c 20m /dev/zero >/root/big").stderr


def test_processes_can_be_killed(sandbox: Sandbox, account: Account) -> None:
    id_ = account.create()
    account.ready(id_)
    account.ssh(id_, "setsid -f sleep 4321 </dev/null >/dev/null 2>&1")
    assert sandbox.signal(id_, "sleep 4321") == 1
    eventually(lambda: not any("4321" in one["command"] for one in sandbox.processes(id_)))


def test_ten_pods_at_once(sandbox: Sandbox, account: Account) -> None:
    ids = [account.create(f"pod{number}") for number in range(10)]
    assert len({account.get(id_)["ssh"]["direct"]["host"] for id_ in ids}) == 10
    for id_ in (ids[0], ids[9]):
        account.ready(id_)
        assert account.ssh(id_, "hostname").stdout.strip() == id_


def test_a_server_of_this_machine_is_reached_under_the_same_address(sandbox: Sandbox, account: Account) -> None:
    url = sandbox.expose(sandbox.control)
    id_ = account.create()
    assert httpx.get(f"{url}/about").status_code == 200
    eventually(lambda: sandbox.ask("execute", pod=id_, command=["curl", "-sf", f"{url}/about"])["code"] == 0)


def test_this_python_and_shown_folders_are_seen(tmp_path: Path, key: Path) -> None:
    levels.need()
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("text")
    with Sandbox(tmp_path / "root", pods="netns", show=(shown,), python=True) as sandbox:
        id_ = Account(sandbox, key, tmp_path).create()
        assert sandbox.execute(id_, "cat", f"{shown}/file") == "text"
        assert "Read-only" in sandbox.ask("execute", pod=id_, command=["touch", f"{shown}/new"])["err"]
        imports = "import msgspec, sys; print(sys.prefix)"
        assert sandbox.execute(id_, sys.executable, "-c", imports).strip() == sys.prefix


def test_make_sandbox(tmp_path: Path) -> None:
    levels.need()
    root = Path(__file__).resolve().parents[2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["scripts/sandbox.sh", "--env", str(tmp_path / "env"), "--quirk", "boot=60", "--model", "x"]
    with subprocess.Popen(
        command, cwd=root, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        eventually((tmp_path / "env").exists)
        create = """. "$0"; curl -s -H "Authorization: Bearer $RUNPOD_API_KEY" -H 'Content-Type: application/json' \\
          -d '{"name": "a", "image": "i", "gpu": {"id": "NVIDIA L4", "count": 1}}' \\
          "$STEPCTL_TARGETS__SANDBOX__API_URL/pods"; curl -s "$SANDBOX_CONTROL/pods" """
        assert f"STEPCTL_MODEL={root}/x" in (tmp_path / "env").read_text()
        out = subprocess.check_output(["sh", "-c", create, str(tmp_path / "env")], text=True)
        assert out.startswith('{"id": ') and '"boot": 60' in out
        process.send_signal(signal.SIGINT)
        said, journal = process.communicate(timeout=30)
    assert "stepctl train examples/day1.jsonl --target sandbox" in said
    assert "created by account" in journal and "POST /v2/pods  201" in journal
    assert not (tmp_path / "env").exists() and process.returncode == 0


def test_nothing_is_left_of_a_killed_sandbox(tmp_path: Path, key: Path) -> None:
    levels.need()
    with Sandbox(tmp_path / "root", pods="netns") as sandbox:
        account = Account(sandbox, key, tmp_path)
        ids = [account.create(f"pod{number}") for number in range(2)]
        account.ready(ids[0])
        pids = [one["pid"] for id_ in ids for one in sandbox.processes(id_)]
        block = sandbox.url.split("//")[1].split(".1:")[0]
        assert len(pids) >= 4 and block in interfaces()
        sandbox.kill()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        eventually(lambda: block not in interfaces())
        eventually(lambda: not (tmp_path / "root/disks").exists())
        sandbox.start()


def interfaces() -> str:
    """All addresses of this machine."""
    return subprocess.check_output(["ip", "-br", "addr"], text=True)
