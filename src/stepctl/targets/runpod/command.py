"""What a pod is started with: its start command and its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from stepctl.targets.runpod.keys import PodKeys

POD_DIR = "/var/lib/stepctl"
LEASE = f"{POD_DIR}/lease"
MARK = f"{POD_DIR}/job"


def pod_args() -> str:
    here = files("stepctl.targets.runpod")
    watchdog = here.joinpath("watchdog.sh").read_text()
    start = here.joinpath("start.sh").read_text()
    return json.dumps({"entrypoint": ["sh", "-c", "STEPCTL_WATCHDOG=$1; " + start, "stepctl", watchdog], "cmd": []})


def pod_env(options: Mapping[str, Any], api_url: str, keys: PodKeys, run: str) -> dict[str, str]:
    def seconds(name: str) -> str:
        return str(max(1, round(60 * float(options[name]))))

    env = {
        "PUBLIC_KEY": keys.client,
        "STEPCTL_MARK": str(options.get("mark") or ""),
        "STEPCTL_BOOT_GRACE": seconds("boot_grace_minutes"),
        "STEPCTL_LEASE": seconds("lease_minutes"),
        "STEPCTL_STALL": seconds("stall_minutes"),
        "STEPCTL_GRACE": seconds("retrieve_grace_minutes"),
        "STEPCTL_SAVE_AHEAD": str(min(300, max(1, round(360 * float(options["max_hours"]))))),
        "STEPCTL_TICK": str(round(float(options["watchdog_seconds"]))),
        "STEPCTL_API": api_url,
    }
    if keys.host:
        env["STEPCTL_HOST_KEY"] = keys.host
    return env
