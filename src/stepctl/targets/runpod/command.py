"""What a pod is started with: its command, and the environment that tells it when to end itself.

The scripts beside this file are POSIX sh. They travel as text in the body of the create, so that any image with a shell
is guarded from the first second on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from stepctl.base.errors import UsageError
from stepctl.base.names import check_name

MAX_ENV = 50
"""Names that the provider takes in a pod's environment."""
DIRECTORY = "/var/lib/stepctl"
"""The pod's own directory, for the lease, the mark and the limits."""
LEASE = f"{DIRECTORY}/lease"
MARK = f"{DIRECTORY}/job"
LIMITS = f"{DIRECTORY}/limits"
TAKEN = "taken"
"""In a job's directory: nobody wants anything of it any more."""
HOST_KEY_LINE = "stepctl-host-key:"
"""What the line of the container's log begins with that tells a host key which the pod made itself."""

_PLACE = ": # @WATCHDOG@"
_END = "END_OF_THE_WATCHDOG"
_OURS = ("PUBLIC_KEY", "STEPCTL_", "RUNPOD_")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN_NAMES = frozenset(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HUGGINGFACEHUB_API_TOKEN"))
_TOKENS = re.compile(r"(?<![A-Za-z0-9_])(rpa|hf|hf_oauth|api_org)_[A-Za-z0-9]{16,}")
_MARK = re.compile(r"([0-9a-f]{64})?")
_PUBLIC_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\n\r]*)?")
_SECRET = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class PodPlan:
    """What a pod is told at its create. Times are whole seconds.

    Attributes:
        run: the run's id.
        mark: hex sha256 of what the run is to be found by on another machine; empty without a key.
        public_key: the one that may log in, in OpenSSH's format.
        host_key_secret: the account's secret that holds the host's private key; None: the container makes its own.
        max_seconds: the pod's whole life, from ``createdAt``.
        max_reason: which limit ``max_seconds`` comes from: ``deadline`` or ``cost``.
        boot_grace: from ``createdAt`` until the job must have started.
        lease: how long a client may be unheard before the job has started.
        stall: how long the job may be without an event.
        grace: how long a job's results wait to be fetched.
        save_ahead: how long before ``max_seconds`` a saved stop is asked for, and how long a stalled job has to save.
        tick: between two looks.
        api_url: base of the provider's API as the pod reaches it.
        env: more variables, for the trainer.
    """

    run: str
    mark: str
    public_key: str
    host_key_secret: str | None
    max_seconds: int
    boot_grace: int
    lease: int
    stall: int
    grace: int
    save_ahead: int
    tick: int
    api_url: str
    max_reason: str = "deadline"
    env: Mapping[str, str] = field(default_factory=dict)


@cache
def start_command() -> str:
    """The ``args`` of a create: JSON of an entrypoint that runs ``start.sh``, with ``watchdog.sh`` in it."""
    start, watchdog = _script("start.sh"), _script("watchdog.sh")
    assert start.count(_PLACE) == 1
    assert _END not in watchdog
    text = start.replace(_PLACE, f"cat <<'{_END}'\n{watchdog}{_END}")
    return json.dumps({"entrypoint": ["sh", "-c", text], "cmd": []}, separators=(",", ":"))


def pod_env(plan: PodPlan, secrets: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a create.

    Args:
        plan: what the pod is told.
        secrets: the account's key and the token of the Hub: a value that holds one of them is refused.

    Raises:
        UsageError: a variable of the target is one of ours, or a secret; they are too many; or the pod's life is too
            short to save anything.
        ValueError: the plan contradicts itself.
    """
    _check(plan)
    times = {
        "MAX_SECONDS": plan.max_seconds,
        "BOOT_GRACE": plan.boot_grace,
        "LEASE": plan.lease,
        "STALL": plan.stall,
        "GRACE": plan.grace,
        "SAVE_AHEAD": plan.save_ahead,
        "TICK": plan.tick,
    }
    env = {
        "PUBLIC_KEY": plan.public_key,
        "STEPCTL_RUN": plan.run,
        "STEPCTL_MARK": plan.mark,
        **{f"STEPCTL_{name}": str(seconds) for name, seconds in times.items()},
        "STEPCTL_MAX_REASON": plan.max_reason,
        "STEPCTL_API": plan.api_url.rstrip("/"),
    }
    if plan.host_key_secret is not None:
        env["STEPCTL_HOST_KEY"] = f"{{{{ RUNPOD_SECRET_{plan.host_key_secret} }}}}"
    for name, value in plan.env.items():
        _check_variable(name, value)
        env[name] = value
    if len(env) > MAX_ENV:
        raise UsageError(
            f"a pod takes {MAX_ENV} variables, and these would be {len(env)}",
            next=f"give the target at most {MAX_ENV - len(env) + len(plan.env)} in env",
        )
    for name, value in env.items():
        if any(secret and secret in value for secret in secrets) or _TOKENS.search(value):
            raise _secret(name)
    return env


def _script(name: str) -> str:
    """A script without its comments: what it says is sent with every create, and comes back with every look."""
    lines = files("stepctl.targets.runpod").joinpath(name).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.strip() and (not line.lstrip().startswith("#") or line.startswith("#!"))]
    return "\n".join(kept) + "\n"


def _check(plan: PodPlan) -> None:
    check_name("run", plan.run)
    seconds = (plan.max_seconds, plan.boot_grace, plan.lease, plan.stall, plan.grace, plan.save_ahead, plan.tick)
    if any(isinstance(each, bool) or not isinstance(each, int) or not 1 <= each < 10**9 for each in seconds):
        raise ValueError(f"times of a pod are whole seconds, 1 or more: {seconds}")
    if plan.save_ahead >= plan.max_seconds:
        raise UsageError(
            f"a pod that may live {plan.max_seconds} s cannot be asked to save {plan.save_ahead} s before its end",
            next="allow more hours, or more cost",
        )
    if plan.max_reason not in ("deadline", "cost"):
        raise ValueError(f"a pod's limit is its deadline or its cost, not {plan.max_reason!r}")
    if not _MARK.fullmatch(plan.mark):
        raise ValueError("a pod's mark is a sha256 in hex, or empty")
    if not _PUBLIC_KEY.fullmatch(plan.public_key):
        raise ValueError("a pod's public key is one line in OpenSSH's format")
    if plan.host_key_secret is not None and not _SECRET.fullmatch(plan.host_key_secret):
        raise ValueError(f"{plan.host_key_secret!r} cannot be the name of a secret")
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", plan.api_url):
        raise ValueError(f"{plan.api_url!r} is no URL of an API")


def _check_variable(name: str, value: str) -> None:
    if name in _TOKEN_NAMES or name == "RUNPOD_API_KEY":
        raise _secret(name)
    if name.startswith(_OURS):
        raise UsageError(f"the variable {name} of the target is one that stepctl sets itself", next=f"remove {name}")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a variable",
            next="use letters, digits and underscores, with no digit in front",
        )
    if "\0" in value:
        raise UsageError(f"the variable {name} of the target holds a NUL byte", next=f"change {name}")


def _secret(name: str) -> UsageError:
    return UsageError(
        f"the variable {name} of the target holds a secret, and a pod's environment can be read by all who see the pod",
        safe="nothing was rented",
        next=f"remove {name} from the target's env: the trainer is given the Hub's token over its own channel",
        code="secret_in_env",
    )
