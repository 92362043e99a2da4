"""What a person sees who starts the sandbox by hand, and the file that makes it a target of stepctl."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

TARGET = "sandbox"


def folders_of_python() -> list[Path]:
    """What a pod must see so that this Python, with its packages, runs in it."""
    return [path for path in (Path(sys.prefix), Path(sys.base_prefix)) if not path.is_relative_to("/usr")]


def settings(url: str) -> dict[str, str]:
    """The target's settings. Everything is quick, since a sandbox's pod is there at once."""
    return {
        "kind": "runpod",
        "api_url": url,
        "max_hours": "1",
        "poll_seconds": "0.5",
        "watchdog_seconds": "2",
        "device": "cpu",
        "python": sys.executable,
    }


def variables(addresses: dict[str, str], key: str) -> dict[str, str]:
    """What ``stepctl --target sandbox`` needs in its environment."""
    target = {
        f"STEPCTL_TARGETS__{TARGET.upper()}__{name.upper()}": value
        for name, value in settings(addresses["url"]).items()
    }
    return {"RUNPOD_API_KEY": key, "SANDBOX_CONTROL": addresses["control"], **target}


def write_env(path: Path, addresses: dict[str, str], key: str, model: Path | None) -> None:
    """A file for ``. FILE``. ``model``: the base model's folder, since a pod reaches no Hub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    more = {"STEPCTL_MODEL": str(model.resolve())} if model else {}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in (variables(addresses, key) | more).items()]
    path.write_text("# Written by the sandbox that runs now; gone when it ends.\n" + "\n".join(lines) + "\n")


def greeting(addresses: dict[str, str], env: Path | None, pods: str) -> str:
    """The first screen."""
    numbers = ("max_hours", "poll_seconds", "watchdog_seconds")
    table = "\n".join(
        f"    {name} = {value if name in numbers else chr(34) + value + chr(34)}"
        for name, value in settings(addresses["url"]).items()
    )
    how = f". {env}" if env else "export RUNPOD_API_KEY=rpa_sandbox_account_key"
    target = "" if env else f"\n  and in stepctl.toml:\n\n    [targets.{TARGET}]\n{table}\n"
    what = {"netns": "machines of their own with sshd", "records": "records only: nothing runs in them"}[pods]
    return f"""An emulated Runpod. Nothing here costs money; its pods are {what}.

  API      {addresses["url"]}
  control  {addresses["control"]}

In another terminal:

    {how}
{target}
    stepctl train examples/day1.jsonl --target {TARGET}
    curl {addresses["control"]}/pods

What goes wrong on demand, and how to ask for it: docs/sandbox.md. Ctrl-C ends it, and every pod with it.
Calls and pods, as they come:
"""
