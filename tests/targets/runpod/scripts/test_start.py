"""The start command as a whole: the guard comes first, then a door with one key, and it stays."""

from __future__ import annotations

import base64
import os
import signal
from pathlib import Path

import paramiko
import pytest
from tests.targets.runpod.scripts.container import SSH, Container, new_key, run
from tests.targets.runpod.scripts.guarded import program, until
from tests.targets.runpod.scripts.stub_api import KEY, StubApi

sshd = pytest.mark.sshd


@sshd
def test_a_client_gets_in_with_its_key_and_sees_no_secret(container: Container) -> None:
    container.env["STEPCTL_HOST_KEY"] = "{{ RUNPOD_SECRET_not_filled_in }}"
    container.start()
    with container.login() as client:
        assert run(client, "echo here") == "here\n"
        seen = run(client, "env")
    seen += container.environment("sshd") + container.environment("sleep 0.05")
    assert "RUNPOD_POD_ID" in seen
    assert "STEPCTL_HOST_KEY is no ed25519 key" not in container.said
    for secret in (KEY, "hf_notfortheeyes", "STEPCTL_HOST_KEY"):
        assert secret not in seen
    keys = container.home / ".ssh" / "authorized_keys"
    assert keys.read_text() == container.env["PUBLIC_KEY"] + "\n"
    assert keys.stat().st_mode & 0o777 == 0o600
    assert keys.parent.stat().st_mode & 0o777 == 0o700
    assert container.dir.stat().st_mode & 0o777 == 0o700
    assert (container.dir / "host_key").stat().st_mode & 0o777 == 0o600


@sshd
def test_no_other_key_and_no_password_gets_in(container: Container) -> None:
    container.start()
    with pytest.raises(paramiko.AuthenticationException), container.login(new_key()[0]):
        pass
    with container.login() as client:
        transport = client.get_transport()
        assert transport is not None
    another = paramiko.Transport(("127.0.0.1", container.port))
    another.start_client(timeout=10)
    with pytest.raises(paramiko.BadAuthenticationType) as refused:
        another.auth_password("root", "root")
    another.close()
    assert refused.value.allowed_types == ["publickey"]


@sshd
def test_the_host_key_that_the_client_gave_is_the_one_that_is_shown(container: Container) -> None:
    private, public = new_key()
    container.env["STEPCTL_HOST_KEY"] = base64.b64encode(private).decode()
    container.start()
    with container.login() as client:
        transport = client.get_transport()
        assert transport is not None
        assert f"ssh-ed25519 {transport.get_remote_server_key().get_base64()}" == public
    assert container.host_keys() == [public]


@sshd
@pytest.mark.parametrize("given", ["null", "bm8ga2V5", "-----BEGIN"])
def test_a_host_key_that_is_none_gives_way_to_an_own_one(container: Container, given: str) -> None:
    container.env["STEPCTL_HOST_KEY"] = given
    container.start()
    with container.login():
        assert "STEPCTL_HOST_KEY is no ed25519 key" in container.said


@sshd
def test_a_restart_of_the_container_keeps_what_it_has(container: Container) -> None:
    container.start()
    with container.login():
        first = container.read("first")
    container.kill()
    container.at(300)
    (container.home / ".ssh" / "authorized_keys").write_text("ssh-rsa AAAA someone else\n")
    container.start()
    until(lambda: len(container.host_keys()) == 2, "the second start")
    with container.login():
        assert len(set(container.host_keys())) == 1
    assert (container.home / ".ssh" / "authorized_keys").read_text() == container.env["PUBLIC_KEY"] + "\n"
    assert (container.read("starts"), container.read("first")) == ("2\n", first) == ("2\n", "5000\n")
    container.says("guards pod pod1a2b3c, start 2")


@sshd
def test_the_watchdog_and_sshd_are_started_again_when_they_die(container: Container) -> None:
    container.start()
    with container.login():
        pass
    (guard,) = [pid for pid in container.processes("watchdog.sh") if os.getpgid(pid) == _parent(pid)]
    os.kill(guard, signal.SIGKILL)
    container.says("the watchdog died: it is started again")
    until(lambda: container.said.count("guards pod") == 2, "another watchdog")
    (server,) = [pid for pid in container.processes("/sshd") if _parent(pid) == os.getpgid(pid)]
    os.kill(server, signal.SIGKILL)
    container.says("sshd ended: it is started again")
    until(lambda: container.listened() == 2, "another sshd")
    with container.login() as client:
        assert run(client, "echo here") == "here\n"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@sshd
def test_a_signal_that_stops_containers_does_not_end_it(container: Container) -> None:
    container.start()
    with container.login():
        assert container.init is not None
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            os.kill(container.init.pid, number)
        container.says("TERM: stays")
        assert container.init.poll() is None
    with container.login():
        pass


@sshd
def test_nobody_gets_in_before_the_provider_hears_the_pod(container: Container, api: StubApi) -> None:
    api.close()
    container.start()
    container.says("waits until the provider is heard: no login before that")
    container.says("the provider does not tell this pod's age: no answer")
    # Time enough for an sshd: without the door that is kept shut it takes a few looks.
    until(lambda: container.looks() >= 20, "looks")
    assert not container.host_keys()
    assert not container.accepts()
    api.open()
    container.at(5)
    with container.login():
        pass


@sshd
def test_a_pod_that_worked_before_lets_its_client_in_while_the_provider_is_away(
    container: Container, api: StubApi
) -> None:
    container.start()
    with container.login():
        pass
    container.kill()
    api.close()
    container.start()
    with container.login():
        pass
    api.open()


@pytest.mark.parametrize("key", [None, "", "null", "AAAAC3NzaC1lZDI1NTE5"])
def test_without_a_key_for_the_client_the_pod_ends_at_once(container: Container, api: StubApi, key: str | None) -> None:
    del container.env["PUBLIC_KEY"]
    if key is not None:
        container.env["PUBLIC_KEY"] = key
    container.start()
    container.says("NO TRAINING IS POSSIBLE HERE: PUBLIC_KEY is no public key")
    container.says("stepctl-watchdog: ends this pod: boot (PUBLIC_KEY is no public key")
    until(lambda: api.endings, "the end")


INSTALLS = """#!/bin/sh
echo "${{0##*/}} $*" >>"{note}"
read -r left <"{left}"
case "$*" in *update*) exit 0 ;; esac
echo $((left - 1)) >"{left}"
[ "$left" -gt 1 ] && exit 100
ln -s {sshd} {path}/sshd && ln -s {keygen} {path}/ssh-keygen
"""


def _packages(container: Container, manager: str, tries: int) -> Path:
    """A package manager that succeeds at that try."""
    container.programs = ("curl", "ln")
    note, left = container.folder / "note", container.folder / "left"
    left.write_text(f"{tries}\n")
    where = {"sshd": program("sshd"), "keygen": program("ssh-keygen"), "path": container.path}
    container.script(manager, INSTALLS.format(note=note, left=left, **where))
    return note


@sshd
@pytest.mark.parametrize("manager", ["apt-get", "apk", "dnf", "microdnf"])
def test_an_image_without_sshd_gets_one(container: Container, manager: str) -> None:
    note = _packages(container, manager, tries=2)
    container.start()
    with container.login():
        pass
    asked = note.read_text()
    assert "openssh" in asked
    assert "curl" not in asked
    assert container.said.count("installs openssh-server") == 2


def test_an_installation_that_fails_goes_on_and_the_boot_grace_ends_the_pod(container: Container, api: StubApi) -> None:
    _packages(container, "apt-get", tries=10**6)
    container.start()
    until(lambda: container.said.count("(try 3)") >= 2, "two rounds")
    assert not api.endings
    container.at(1760)
    container.says("ends this pod: ")
    until(lambda: api.endings, "the end")


def test_an_image_with_neither_sshd_nor_a_package_manager_ends_at_once(container: Container, api: StubApi) -> None:
    container.programs = ("curl",)
    container.start()
    container.says("NO TRAINING IS POSSIBLE HERE: no sshd, and no package manager to install it with")
    container.says("ends this pod: boot (no sshd")
    until(lambda: api.endings, "the end")


def test_an_image_that_cannot_speak_http_says_so_and_goes_on_trying(container: Container, api: StubApi) -> None:
    container.programs = SSH
    container.start()
    container.says("NO TRAINING IS POSSIBLE HERE: no curl, python3 or wget, and no package manager")
    until(lambda: container.said.count("terminate: no answer (no curl, python3 or wget: no training)") > 2, "tries")
    assert not container.accepts()
    (container.path / "curl").symlink_to(program("curl"))
    until(lambda: api.endings, "the end")


def test_the_guard_is_there_before_anything_that_hangs(container: Container, api: StubApi) -> None:
    container.programs = ("curl",)
    container.script("apt-get", "#!/bin/sh\nexec sleep 1000\n")
    container.start()
    container.says("installs openssh-server")
    container.at(900)
    container.says("ends this pod: lease")
    until(lambda: api.endings, "the end")


@pytest.mark.parametrize("memory", [True, False])
def test_a_full_disk_does_not_cost_the_guard(container: Container, api: StubApi, memory: bool) -> None:
    container.dir.write_text("nothing can be made below this")
    if not memory:
        container.env["STEPCTL_SHM"] = str(container.dir)
    container.env["STEPCTL_MAX_SECONDS"] = "30"
    container.start()
    until(lambda: api.endings, f"the end, for an age of 40 s\n{container.said}")
    assert container.init is not None
    assert container.init.poll() is None


@sshd
def test_a_locked_root_is_unlocked_for_keys_alone(container: Container) -> None:
    shadow = container.etc / "shadow"
    shadow.write_text("daemon:!:1::::::\nroot:!locked:19000:0:99999:7:::\nsshd:!:19000::::::\n")
    container.start()
    with container.login():
        pass
    assert shadow.read_text() == "daemon:!:1::::::\nroot:*:19000:0:99999:7:::\nsshd:!:19000::::::\n"
