"""From a host as a person names it to how it is reached: the settings, then ~/.ssh/config, then what is usual."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepctl.targets.ssh.errors import BadSetup

_USUAL_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_GLOBAL = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
_DEPTH = 8


@dataclass(frozen=True)
class Endpoint:
    """A machine as settings name it.

    Attributes:
        host: a name or address, or an alias of ~/.ssh/config.
        known_hosts: the file that holds the host's key; else those that ssh looks at.
        alone: only what is given here counts: nothing of the user's own configuration, agent or keys.
    """

    host: str
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    known_hosts: str | None = None
    alone: bool = False


@dataclass(frozen=True)
class Route:
    """How a machine is reached."""

    host: str
    port: int
    user: str
    key_files: tuple[Path, ...]
    usual_keys: tuple[Path, ...]
    agent: bool
    known_hosts: tuple[Path, ...]
    key_name: str
    """What the host is called in known_hosts."""
    proxy_command: str | None = None
    jumps: tuple[str, ...] = ()
    address_family: str = "any"

    @property
    def where(self) -> str:
        """For messages."""
        return self.host if self.port == 22 else f"{self.host} port {self.port}"


def home() -> Path:
    """The user's home folder."""
    return Path.home()


def route_to(endpoint: Endpoint) -> Route:
    """How to reach a machine.

    Raises:
        BadSetup: ~/.ssh/config cannot be read.
    """
    found = {} if endpoint.alone else _configured(endpoint.host)
    host = str(found.get("hostname", endpoint.host))
    port = endpoint.port or _number(found.get("port"))
    user = endpoint.user or str(found.get("user") or _login())
    if endpoint.key_file:
        keys: tuple[Path, ...] = (Path(endpoint.key_file).expanduser(),)
    else:
        keys = tuple(Path(name).expanduser() for name in found.get("identityfile", ()))
    only = endpoint.alone or str(found.get("identitiesonly", "no")).lower() == "yes"
    usual = () if only or keys else tuple(home() / ".ssh" / name for name in _USUAL_KEYS)
    name = str(found.get("hostkeyalias") or host)
    proxy = str(found.get("proxycommand") or "none")
    jump = str(found.get("proxyjump") or "none")
    return Route(
        host=host,
        port=port,
        user=user,
        key_files=keys,
        usual_keys=usual,
        agent=not only,
        known_hosts=_known(endpoint, found),
        key_name=name if port == 22 or "hostkeyalias" in found else f"[{name}]:{port}",
        proxy_command=proxy if proxy.lower() != "none" and jump.lower() == "none" else None,
        jumps=tuple(jump.split(",")) if jump.lower() != "none" else (),
        address_family=str(found.get("addressfamily", "any")).lower(),
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "root" if os.getuid() == 0 else str(os.getuid())


def _number(value: object) -> int:
    try:
        return int(str(value)) if value else 22
    except ValueError:
        raise BadSetup(f"~/.ssh/config gives the port {value!r}, which is no number", next="mend it there") from None


def _known(endpoint: Endpoint, found: dict[str, Any]) -> tuple[Path, ...]:
    if endpoint.known_hosts:
        return (Path(endpoint.known_hosts).expanduser(),)
    if endpoint.alone:
        return ()
    named = str(found.get("userknownhostsfile") or "").split()
    own = [Path(name).expanduser() for name in named] or [home() / ".ssh" / "known_hosts"]
    return (*own, *_GLOBAL)


def _configured(host: str) -> dict[str, Any]:
    """What ~/.ssh/config says of a host; names are in lower case."""
    import paramiko

    path = home() / ".ssh" / "config"
    if not path.is_file():
        return {}
    try:
        text = "\n".join(_lines(path, 0))
        return dict(paramiko.SSHConfig.from_text(text).lookup(host))
    except (OSError, UnicodeDecodeError, paramiko.SSHException, paramiko.ConfigParseError) as error:
        raise BadSetup(
            f"{path} cannot be read: {error}", next="mend it, or name host, user and key in the target"
        ) from error


def _lines(path: Path, depth: int) -> Iterator[str]:
    """The lines of a configuration, with those that it includes."""
    for line in path.read_text().splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() != "include" or depth >= _DEPTH:
            yield line
            continue
        for pattern in rest.replace('"', "").split():
            full = Path(pattern).expanduser()
            base = full if full.is_absolute() else home() / ".ssh" / full
            for each in sorted(Path(base.anchor).glob(str(base.relative_to(base.anchor)))):
                yield from _lines(each, depth + 1)


def jump_endpoint(word: str) -> Endpoint:
    """``[user@]host[:port]`` of a ProxyJump; the rest comes from ~/.ssh/config."""
    user, _, rest = word.strip().removeprefix("ssh://").rpartition("@")
    host, colon, port = rest.rpartition(":")
    if colon and port.isdigit() and "]" not in port:
        return Endpoint(host=host.strip("[]"), port=int(port), user=user or None)
    return Endpoint(host=rest.strip("[]"), user=user or None)
