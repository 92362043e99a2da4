"""What can be wrong with a connection, each with a code and the words to type next."""

from __future__ import annotations

from stepctl.base.errors import StepctlError

_SAFE = "nothing was started or changed on the machine by this"


class SshError(StepctlError):
    """No connection can be had. ``lasting``: trying again does not help until a person mends something."""

    code = "ssh"
    lasting = False


class LinkLost(SshError):
    """A connection that was there is gone, or says nothing any more."""

    code = "ssh_lost"


class Unreachable(SshError):
    """Nobody answers at that address, or not in time."""

    code = "ssh_unreachable"


class NoWorkdir(SshError):
    """The machine is there, and its working directory is not, or not yet."""

    code = "ssh_no_workdir"


class UnknownName(SshError):
    """The host's name means no address."""

    code = "ssh_unknown_name"


class UnknownHostKey(SshError):
    """The host's key is in no known_hosts file."""

    code = "ssh_unknown_host_key"
    lasting = True


class WrongHostKey(SshError):
    """Another key than the one that is known."""

    code = "ssh_wrong_host_key"
    lasting = True


class LoginRefused(SshError):
    """None of our keys opens that account."""

    code = "ssh_login_refused"
    lasting = True


class BadSetup(SshError):
    """Something on the machine, or in the settings of the connection, must be mended by a person."""

    code = "ssh_setup"
    lasting = True


def lost(where: str, why: str = "") -> LinkLost:
    """The error for a connection that broke."""
    return LinkLost(
        f"the connection to {where} is lost{f': {why}' if why else ''}", safe="a job that runs there goes on"
    )


def unknown_name(name: str) -> UnknownName:
    """The error for a name without an address."""
    return UnknownName(
        f"the name {name} is not known: it has no address", safe=_SAFE, next="check the target's host, or ~/.ssh/config"
    )


def refused(where: str) -> Unreachable:
    """The error for a port where nobody listens."""
    return Unreachable(
        f"{where} refuses the connection: no SSH server listens there",
        safe=_SAFE,
        next="check the target's port, and that the machine's SSH server runs",
    )


def timed_out(where: str, seconds: float) -> Unreachable:
    """The error for silence."""
    return Unreachable(
        f"{where} did not answer in {seconds:.0f} s",
        safe=_SAFE,
        next="check that the machine is on, its address, and any firewall or VPN between",
    )


def unreachable(where: str, why: str) -> Unreachable:
    """The error for a network that has no way there."""
    return Unreachable(f"{where} cannot be reached: {why}", safe=_SAFE, next="check the network, and the target's host")


def no_ssh(where: str, why: str) -> Unreachable:
    """The error for something that does not speak SSH as we do, or gave up."""
    return Unreachable(f"no SSH session with {where}: {why}", safe=_SAFE, next="try the same with: ssh -v")


def unknown_host_key(where: str, shown: str, add: str, file: str) -> UnknownHostKey:
    """The error for a host that was never met; ``add`` is the command that notes its key."""
    return UnknownHostKey(
        f"the host key of {where} is not known; it shows {shown}",
        safe=_SAFE,
        next=f"compare that with the machine's own key, then: {add} >> {file}",
    )


def wrong_host_key(where: str, shown: str, known: str, name: str, file: str) -> WrongHostKey:
    """The error for a host that shows another key than before."""
    return WrongHostKey(
        f"the host key of {where} is another one than the known one: it shows {shown}, known is {known}",
        safe="nothing was sent: it may be another machine that answers",
        next=f"if the machine was made anew: ssh-keygen -R '{name}' -f {file}, then note its new key",
    )


def login_refused(where: str, user: str, tried: list[str], notes: list[str]) -> LoginRefused:
    """The error for an account that none of our keys opens."""
    keys = f"tried: {', '.join(tried)}" if tried else "there is no key to try"
    return LoginRefused(
        f"{where} lets nobody in as {user} ({'; '.join([keys, *notes])})",
        safe=_SAFE,
        next=f"put your public key into ~{user}/.ssh/authorized_keys there, or name the right one: key = ...",
    )


def other_host(where: str, why: str) -> BadSetup:
    """The error for a name that led to another machine than before, with the same home."""
    return BadSetup(
        f"{where} is not the machine of this job: {why}",
        safe="the job goes on if it runs, and nothing of it was removed",
        next="let that host lead to the first one (HostName in ~/.ssh/config) until the run has ended; "
        "a target must name one machine",
        code="ssh_other_host",
    )


def no_workdir(where: str, workdir: str, run: str) -> NoWorkdir:
    """The error for a working directory that had a run, and is not there."""
    return NoWorkdir(
        f"{where} has no {workdir}/runs now",
        safe="if its disk is only not mounted yet, nothing is lost",
        next=f"once it is there: stepctl train attach {run}; if it is gone for good: "
        f"stepctl train cancel {run} --abandon",
    )
