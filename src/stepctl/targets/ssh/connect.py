"""A connection to a machine: found, checked, logged in, and closed when it says nothing any more."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from stepctl.targets.ssh import errors
from stepctl.targets.ssh.route import Endpoint, Route, jump_endpoint, route_to

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_JUMPS = 5
_WATCH = 0.2
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


@dataclass(frozen=True)
class Limits:
    """Seconds. A dead link is noticed after ``user_timeout`` by the system, after ``answer`` behind a box that
    acks. ``setup`` is for the first sign of a Python that starts on a slow disk."""

    connect: float = 15.0
    login: float = 20.0
    channel: float = 20.0
    answer: float = 30.0
    setup: float = 120.0
    keepalive: int = 5
    user_timeout: float = 20.0


class _Prompt(socket.socket):
    """Acknowledges at once what comes, at first: sshd says something after the login, and holds back its next words
    (Nagle) until that is acknowledged, which the system puts off for 40 ms."""

    prompt = True

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        if self.prompt and _QUICKACK is not None:
            with contextlib.suppress(OSError):
                self.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data


class Connection:
    """One SSH connection; channels are opened from it."""

    def __init__(
        self, transport: paramiko.Transport, route: Route, limits: Limits, close: Callable[[], None] = lambda: None
    ) -> None:
        self.transport, self.route, self.limits, self._close = transport, route, limits, close
        self.silent = False
        self._due: float | None = None
        self._watcher: threading.Thread | None = None

    @property
    def where(self) -> str:
        """The machine, for messages."""
        return self.route.where

    @property
    def alive(self) -> bool:
        """Whether nobody has noticed its end."""
        return bool(self.transport.is_active())

    def close(self) -> None:
        """Close it, and what it goes through."""
        with contextlib.suppress(Exception):
            self.transport.close()
        self._close()

    @contextlib.contextmanager
    def guarded(self, seconds: float) -> Iterator[None]:
        """Close the connection when what is done in here takes longer: whatever waits for it then ends."""
        self._due = time.monotonic() + seconds
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        try:
            yield
        finally:
            self._due = None

    def _watch(self) -> None:
        while self.alive:
            due = self._due
            if due is not None and time.monotonic() > due:
                self.silent = True
                self.close()
            time.sleep(_WATCH)

    @contextlib.contextmanager
    def corked(self, wanted: bool) -> Iterator[None]:
        """Let the system fill its segments with what is sent in here, which goes out at the end at the latest: long
        writes take a seventh less. Only Linux does that, and only for a socket of its own."""
        option, sock = getattr(socket, "TCP_CORK", None), self.transport.sock
        wanted = wanted and option is not None and isinstance(sock, socket.socket)
        if wanted:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, 1)
        try:
            yield
        finally:
            if wanted:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_TCP, option, 0)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """As :meth:`guarded`, for what ends with the connection.

        Raises:
            LinkLost: it broke, or took too long.
        """
        try:
            with self.guarded(seconds):
                yield
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.close()
            raise self.lost(error) from error

    def lost(self, error: BaseException | None = None) -> errors.LinkLost:
        """The error for its end."""
        return errors.lost(self.where, "it says nothing any more" if self.silent or error is None else _words(error))

    def open(self) -> paramiko.Channel:
        """A new session channel.

        Raises:
            LinkLost: the connection is gone.
        """
        with self.within(self.limits.channel):
            channel = self.transport.open_session(timeout=self.limits.channel)
        if isinstance(self.transport.sock, _Prompt):
            self.transport.sock.prompt = False
        return channel


def connect(endpoint: Endpoint, limits: Limits = Limits()) -> Connection:
    """Connect and log in.

    Raises:
        UnknownName, Unreachable, UnknownHostKey, WrongHostKey, LoginRefused, BadSetup: see errors.py.
    """
    return _connect(route_to(endpoint), limits, _JUMPS)


def _connect(route: Route, limits: Limits, jumps: int) -> Connection:
    sock, close = _socket(route, limits, jumps)
    try:
        transport = paramiko.Transport(sock)
    except (OSError, paramiko.SSHException) as error:
        close()
        raise errors.no_ssh(route.where, _words(error)) from error
    connection = Connection(transport, route, limits, close)
    try:
        transport.banner_timeout = transport.auth_timeout = limits.login
        known = known_keys(route)
        _prefer(transport, known)
        _handshake(transport, route, limits)
        _check_host(transport, route, known)
        _login(transport, route)
        transport.set_keepalive(limits.keepalive)
    except BaseException:
        connection.close()
        raise
    return connection


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


# --- the way there ----------------------------------------------------------------------------------------------------


def _socket(route: Route, limits: Limits, jumps: int) -> tuple[Any, Callable[[], None]]:
    if route.proxy_command:
        return _through_command(route)
    if route.jumps:
        return _through_jumps(route, limits, jumps)
    return _direct(route, limits), lambda: None


def _direct(route: Route, limits: Limits) -> socket.socket:
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(route.address_family, socket.AF_UNSPEC)
    try:
        found = socket.getaddrinfo(route.host, route.port, family, socket.SOCK_STREAM)
    except OSError as error:
        raise errors.unknown_name(route.host) from error
    last: OSError = OSError("no address")
    for kind, _, _, _, address in found:
        sock = _Prompt(kind, socket.SOCK_STREAM)
        sock.settimeout(limits.connect)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            last = error
            continue
        _tune(sock, limits)
        return sock
    if isinstance(last, ConnectionRefusedError):
        raise errors.refused(route.where) from last
    if isinstance(last, TimeoutError):
        raise errors.timed_out(route.where, limits.connect) from last
    raise errors.unreachable(route.where, last.strerror or str(last)) from last


def _tune(sock: socket.socket, limits: Limits) -> None:
    """The system ends a connection on which nothing is acknowledged any more."""
    options = [
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(limits.user_timeout * 1000)),
    ]
    for level, name, value in options:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                sock.setsockopt(level, getattr(socket, name), value)


def _through_command(route: Route) -> tuple[socket.socket, Callable[[], None]]:
    """``ProxyCommand``: a program whose stdin and stdout are the connection."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {route.proxy_command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            start_new_session=True,
        )

    def close() -> None:
        ours.close()
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)

    return ours, close


def _through_jumps(route: Route, limits: Limits, jumps: int) -> tuple[Any, Callable[[], None]]:
    """``ProxyJump``: each machine on the way is checked and logged in to as the last one is."""
    if len(route.jumps) > jumps:
        raise errors.BadSetup(f"the way to {route.where} has too many jumps", next="check ProxyJump in ~/.ssh/config")
    *before, last = route.jumps
    from dataclasses import replace

    hop = route_to(jump_endpoint(last))
    if before:
        hop = replace(hop, jumps=tuple(before), proxy_command=None)
    between = _connect(hop, limits, jumps - 1)
    with between.within(limits.channel):
        channel = between.transport.open_channel(
            "direct-tcpip", (route.host, route.port), ("127.0.0.1", 0), timeout=limits.channel
        )
    return channel, between.close


# --- the host's key ---------------------------------------------------------------------------------------------------


def known_keys(route: Route) -> dict[str, paramiko.PKey]:
    """The keys that the host may show, by type."""
    found: dict[str, paramiko.PKey] = {}
    for path in route.known_hosts:
        if not path.is_file():
            continue
        try:
            keys = paramiko.HostKeys(str(path)).lookup(route.key_name)
        except (OSError, paramiko.SSHException, ValueError) as error:
            raise errors.BadSetup(f"{path} cannot be read: {_words(error)}", next="mend that file") from error
        for kind in keys or ():
            found.setdefault(kind, keys[kind])
    return found


def _prefer(transport: paramiko.Transport, known: dict[str, paramiko.PKey]) -> None:
    """GCM is three times as fast here as the others; the host is asked for a key of a type that is known."""
    options = transport.get_security_options()
    options.ciphers = tuple(name for name in _CIPHERS if name in options.ciphers)
    kinds: list[str] = []
    for kind in known:
        kinds += ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]
    first = [kind for kind in kinds if kind in options.key_types]
    options.key_types = (*first, *(kind for kind in options.key_types if kind not in first))


def _handshake(transport: paramiko.Transport, route: Route, limits: Limits) -> None:
    try:
        transport.start_client(timeout=limits.login)
        # It does not say when its time is over.
        transport.get_remote_server_key()
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise errors.no_ssh(route.where, _words(error)) from error


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen shows it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _check_host(transport: paramiko.Transport, route: Route, known: dict[str, paramiko.PKey]) -> None:
    shown = transport.get_remote_server_key()
    file = shlex.quote(str(route.known_hosts[0] if route.known_hosts else Path("~/.ssh/known_hosts")))
    if not known:
        port = "" if route.port == 22 else f"-p {route.port} "
        raise errors.unknown_host_key(route.where, fingerprint(shown), f"ssh-keyscan {port}{route.host}", file)
    if known.get(shown.get_name()) != shown:
        expected = known.get(shown.get_name()) or next(iter(known.values()))
        raise errors.wrong_host_key(route.where, fingerprint(shown), fingerprint(expected), route.key_name, file)


# --- the login --------------------------------------------------------------------------------------------------------


def _login(transport: paramiko.Transport, route: Route) -> None:
    tried: list[str] = []
    notes: list[str] = []
    for name, key in _keys(route, notes):
        tried.append(name)
        try:
            left = transport.auth_publickey(route.user, key)
        except paramiko.BadAuthenticationType as error:
            notes.append(f"the server takes {' or '.join(error.allowed_types)} only")
            break
        except paramiko.AuthenticationException as error:
            if not transport.is_active():
                notes.append(_words(error))
                break
            continue
        except (OSError, EOFError, paramiko.SSHException) as error:
            if transport.is_active():
                notes.append(f"{name}: {_words(error)}")
                continue
            raise errors.no_ssh(route.where, _words(error)) from error
        if not left:
            return
        notes.append(f"the server wants {' and '.join(left)} as well, which is not supported")
        break
    raise errors.login_refused(route.where, route.user, tried, notes)


def _keys(route: Route, notes: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
    """Key files that are named, then the agent's, then the usual files."""
    for path in route.key_files:
        yield from _from_file(path, notes, needed=True)
    if route.agent:
        try:
            for key in paramiko.Agent().get_keys():
                yield f"the agent's {key.get_name()} key", key
        except (OSError, paramiko.SSHException) as error:
            notes.append(f"the agent cannot be asked: {_words(error)}")
    for path in route.usual_keys:
        yield from _from_file(path, notes, needed=False)


def _from_file(path: Path, notes: list[str], *, needed: bool) -> Iterator[tuple[str, paramiko.PKey]]:
    if not path.is_file():
        if needed:
            notes.append(f"the key file {path} is not there")
        return
    try:
        yield str(path), paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):
        notes.append(f"{path} needs its passphrase: ssh-add {path}")
    except (OSError, ValueError, paramiko.SSHException) as error:
        notes.append(f"{path} cannot be read: {_words(error)}")
