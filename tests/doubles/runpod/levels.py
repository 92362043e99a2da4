"""What pods can be on this machine: ``netns`` (real ones, in namespaces of their own) or ``records``."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

VARIABLE = "STEPCTL_SANDBOX_LEVEL"
TOOLS = {
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
TRIAL = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/u /mnt/w /mnt/m
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/u,workdir=/mnt/w /mnt/m
ip link add trial0 type veth peer name trial1
nft add table ip trial
"""


@functools.cache
def missing() -> str:
    """Why there can be no real pods here; empty when there can."""
    if os.environ.get(VARIABLE, "netns") != "netns":
        return f"{VARIABLE} says otherwise"
    if sys.platform != "linux" or os.geteuid() != 0:
        return "real pods need root on Linux"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    packages = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool, path=path)})
    if packages:
        return f"real pods need packages (make system): {', '.join(packages)}"
    command = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "sh", "-ec", TRIAL]
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
    return f"namespaces do not work here: {done.stderr.strip()}" if done.returncode else ""


def demanded() -> bool:
    """Whether a test that cannot have real pods must fail instead of being skipped."""
    level = os.environ.get(VARIABLE)
    return level == "netns" or (bool(os.environ.get("CI")) and level is None)


def need() -> None:
    """Skip the test that asks where there are no real pods; fail it where they are demanded."""
    import pytest

    why = missing()
    assert not (why and demanded()), why
    if why:
        pytest.skip(why)
