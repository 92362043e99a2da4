"""Who is let in, who is believed, and what is said otherwise."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from tests.doubles.relay import Relay
from tests.doubles.sshd import Sshd, free_port, make_key

from stepctl.targets.ssh import errors
from stepctl.targets.ssh.channel import Stream
from stepctl.targets.ssh.connect import Connection, Limits, connect, fingerprint
from stepctl.targets.ssh.route import Endpoint, jump_endpoint, route_to

pytestmark = pytest.mark.sshd
SHORT = Limits(connect=1.0, login=2.0, channel=2.0, answer=2.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own home has no keys, no configuration, and there is no agent."""
    folder = tmp_path / "user"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def endpoint(sshd: Sshd) -> Endpoint:
    return Endpoint("127.0.0.1", sshd.port, sshd.user, str(sshd.key), str(sshd.known_hosts))


def says(connection: Connection, script: str = "echo hello") -> str:
    try:
        return Stream(connection, script).line().decode()
    finally:
        connection.close()


def test_a_key_opens_it_with_a_fast_cipher(endpoint: Endpoint) -> None:
    connection = connect(endpoint)
    assert connection.transport.local_cipher == "aes128-gcm@openssh.com"
    assert says(connection) == "hello"
    assert not connection.alive


def test_a_name_that_means_nothing() -> None:
    with pytest.raises(errors.UnknownName, match="no-such-host"):
        connect(Endpoint("no-such-host.invalid"))


def test_nobody_listens(endpoint: Endpoint) -> None:
    with pytest.raises(errors.Unreachable, match="refuses the connection"):
        connect(replace(endpoint, port=free_port()))


def test_nobody_answers(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fill = [socket.socket() for _ in range(4)]
        for sock in fill:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        with pytest.raises(errors.Unreachable, match="did not answer in 1 s"):
            connect(replace(endpoint, port=port), SHORT)
        for sock in fill:
            sock.close()


def test_something_else_listens(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def talk() -> None:
            sock, _ = other.accept()
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            sock.close()

        threading.Thread(target=talk, daemon=True).start()
        with pytest.raises(errors.Unreachable, match="no SSH session"):
            connect(replace(endpoint, port=other.getsockname()[1]), SHORT)


def test_something_that_says_nothing_listens(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(errors.Unreachable, match="no SSH session"):
        connect(replace(endpoint, port=mute.getsockname()[1]), SHORT)


def test_a_host_that_was_never_met(endpoint: Endpoint, sshd: Sshd, tmp_path: Path) -> None:
    empty = tmp_path / "known"
    with pytest.raises(errors.UnknownHostKey, match="is not known") as caught:
        connect(replace(endpoint, known_hosts=str(empty)))
    assert caught.value.lasting
    # The command that the message gives makes the host known.
    command = caught.value.next.partition("then: ")[2]
    shown = subprocess.run(
        ["ssh-keygen", "-lf", f"{sshd.folder}/host_key.pub"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split()[1] in caught.value.message
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert says(connect(replace(endpoint, known_hosts=str(empty)))) == "hello"


def test_a_host_with_another_key(endpoint: Endpoint, sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{sshd.port} {make_key(tmp_path / 'other')}\n")
    with pytest.raises(errors.WrongHostKey, match="another one") as caught:
        connect(replace(endpoint, known_hosts=str(known)))
    assert "nothing was sent" in caught.value.safe
    command = caught.value.next.partition(": ")[2].partition(",")[0]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert known.read_text() == ""


def test_a_key_for_another_port_does_not_count(endpoint: Endpoint, sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(f"127.0.0.1 {sshd.host_key}\n[127.0.0.1]:{sshd.port + 1} {sshd.host_key}\n")
    with pytest.raises(errors.UnknownHostKey):
        connect(replace(endpoint, known_hosts=str(known)))


def test_a_hashed_name_and_a_key_of_another_type_beside_it(endpoint: Endpoint, sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(sshd.known_hosts.read_text())
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(tmp_path / "rsa")], check=True)
    rsa = " ".join((tmp_path / "rsa.pub").read_text().split()[:2])
    known.write_text(f"[127.0.0.1]:{sshd.port} {rsa}\n" + known.read_text())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    assert says(connect(replace(endpoint, known_hosts=str(known)))) == "hello"


def test_a_damaged_file_of_known_hosts(endpoint: Endpoint, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_bytes(b"\xff\xfe garbage \x00\n" * 3)
    with pytest.raises(errors.SshError) as caught:
        connect(replace(endpoint, known_hosts=str(known)))
    assert caught.value.lasting


def test_a_key_that_opens_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    with pytest.raises(errors.LoginRefused, match="lets nobody in") as caught:
        connect(replace(endpoint, key_file=str(tmp_path / "other")))
    assert str(tmp_path / "other") in caught.value.message
    assert "authorized_keys" in caught.value.next


def test_no_key_at_all(endpoint: Endpoint) -> None:
    with pytest.raises(errors.LoginRefused, match="there is no key to try"):
        connect(replace(endpoint, key_file=None))


def test_a_key_file_that_is_not_there(endpoint: Endpoint, tmp_path: Path) -> None:
    with pytest.raises(errors.LoginRefused, match="is not there"):
        connect(replace(endpoint, key_file=str(tmp_path / "nothing")))


def test_a_key_that_needs_its_passphrase(endpoint: Endpoint, sshd: Sshd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    key = serialization.load_ssh_private_key(sshd.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(errors.LoginRefused, match="ssh-add"):
        connect(replace(endpoint, key_file=str(locked)))


@pytest.fixture
def agent(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that holds the key."""
    done = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True)
    env = dict(part.split("=", 1) for part in done.stdout.replace("\n", "").split(";") if "=" in part)
    monkeypatch.setenv("SSH_AUTH_SOCK", env["SSH_AUTH_SOCK"])
    subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True, capture_output=True)
    yield
    os.kill(int(env["SSH_AGENT_PID"]), 15)


@pytest.mark.usefixtures("agent")
def test_the_agent_has_the_key(endpoint: Endpoint, tmp_path: Path) -> None:
    assert says(connect(replace(endpoint, key_file=None))) == "hello"
    with pytest.raises(errors.LoginRefused):
        connect(replace(endpoint, key_file=None, alone=True))
    make_key(tmp_path / "other")
    assert says(connect(replace(endpoint, key_file=str(tmp_path / "other")))) == "hello"


def test_the_usual_key_is_tried(endpoint: Endpoint, sshd: Sshd, home: Path) -> None:
    (home / ".ssh/id_ed25519").write_bytes(sshd.key.read_bytes())
    assert says(connect(replace(endpoint, key_file=None))) == "hello"


def test_an_alias_of_the_configuration(sshd: Sshd, home: Path) -> None:
    (home / ".ssh/more").write_text(
        f"Host box\n HostName 127.0.0.1\n Port {sshd.port}\n User {sshd.user}\n IdentityFile {sshd.key}\n"
        f" UserKnownHostsFile {sshd.known_hosts}\n"
    )
    (home / ".ssh/config").write_text("Include more\nHost *\n  Port 1\n")
    assert says(connect(Endpoint("box"))) == "hello"
    with pytest.raises(errors.Unreachable):
        connect(Endpoint("box", port=free_port()))


def test_through_another_machine(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    with Sshd(tmp_path / "bastion") as bastion:
        way = tmp_path / "way.sh"
        way.write_text('exec 3<>"/dev/tcp/$1/$2"; cat <&3 & exec cat >&3\n')
        known = tmp_path / "known"
        known.write_text(sshd.known_hosts.read_text() + bastion.known_hosts.read_text())
        (home / ".ssh/config").write_text(
            f"UserKnownHostsFile {known}\n"
            f"Host bastion\n HostName 127.0.0.1\n Port {bastion.port}\n IdentityFile {bastion.key}\n"
            f"Host box\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {sshd.key}\n ProxyJump bastion\n"
            f"Host box2\n HostName 127.0.0.1\n Port {sshd.port}\n IdentityFile {sshd.key}\n"
            f" ProxyCommand bash {way} %h %p\n"
            "Host box3\n HostName 127.0.0.1\n ProxyCommand exit 1\n"
        )
        assert says(connect(Endpoint("box"))) == "hello"
        assert "direct-tcpip" in bastion.log.read_text() or "Accepted publickey" in bastion.log.read_text()
        assert says(connect(Endpoint("box2"))) == "hello"
        with pytest.raises(errors.Unreachable):
            connect(Endpoint("box3"), SHORT)
        # A machine on the way is believed no more than any other.
        known.write_text(sshd.known_hosts.read_text())
        with pytest.raises(errors.UnknownHostKey, match=str(bastion.port)):
            connect(Endpoint("box"))


def test_a_configuration_that_cannot_be_read(home: Path) -> None:
    (home / ".ssh/config").write_bytes(b"Host \xff\xfe\n")
    with pytest.raises(errors.BadSetup, match="cannot be read"):
        connect(Endpoint("box"))
    (home / ".ssh/config").write_text("Host box\n  Port many\n")
    with pytest.raises(errors.BadSetup, match="no number"):
        connect(Endpoint("box"))


def test_words_of_a_jump() -> None:
    assert jump_endpoint("me@gate:2222") == Endpoint("gate", 2222, "me")
    assert jump_endpoint("gate") == Endpoint("gate")
    assert jump_endpoint("ssh://me@[::1]:22") == Endpoint("::1", 22, "me")


def test_what_is_given_outranks_the_configuration(home: Path) -> None:
    (home / ".ssh/config").write_text(
        "Host box\n HostName far\n Port 3\n User she\n IdentityFile ~/a\n HostKeyAlias b\n"
    )
    route = route_to(Endpoint("box"))
    assert (route.host, route.port, route.user, route.key_files, route.key_name) == (
        "far",
        3,
        "she",
        (home / "a",),
        "b",
    )
    route = route_to(Endpoint("box", 4, "he", "~/c"))
    assert (route.host, route.port, route.user, route.key_files) == ("far", 4, "he", (home / "c",))
    alone = route_to(Endpoint("box", alone=True))
    assert (alone.host, alone.port, alone.key_files, alone.agent, alone.known_hosts) == ("box", 22, (), False, ())


@pytest.mark.parametrize("noise", ["echo welcome", "printf 'no end of line'", "echo on stderr >&2"])
def test_a_login_that_talks(tmp_path: Path, noise: str) -> None:
    with Sshd(tmp_path / "chatty", bashrc=noise) as chatty:
        there = Endpoint("127.0.0.1", chatty.port, chatty.user, str(chatty.key), str(chatty.known_hosts))
        assert says(connect(there)) == "hello"


def test_much_on_stderr_blocks_nobody(endpoint: Endpoint) -> None:
    assert says(connect(endpoint), "head -c 5000000 /dev/zero | tr '\\0' x >&2; echo hello") == "hello"


def test_a_command_that_says_nothing(endpoint: Endpoint) -> None:
    connection = connect(endpoint, SHORT)
    stream = Stream(connection, "sleep 30")
    with pytest.raises(errors.LinkLost, match="says nothing any more"):
        stream.line(0.5)
    assert not connection.alive


def test_a_frozen_server_is_noticed_at_each_step(endpoint: Endpoint, sshd: Sshd) -> None:
    relay = Relay(sshd.port)
    sshd.trust(relay.port)
    through = replace(endpoint, port=relay.port)
    relay.freeze()
    with pytest.raises(errors.Unreachable):
        connect(through, SHORT)
    relay.thaw()
    connection = connect(through, SHORT)
    relay.freeze()
    with pytest.raises(errors.LinkLost):
        Stream(connection, "echo hello")
    relay.close()


def test_fingerprints_are_those_of_ssh(sshd: Sshd) -> None:
    import paramiko

    done = subprocess.run(["ssh-keygen", "-lf", f"{sshd.key}.pub"], capture_output=True, text=True, check=True)
    assert fingerprint(paramiko.PKey.from_path(sshd.key)).split()[1] == done.stdout.split()[1]
