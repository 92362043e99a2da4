"""From a target's recorded options to what a pod is told at its create."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepctl.targets.runpod.command import PodPlan, pod_env
from stepctl.targets.runpod.keys import PodKeys
from stepctl.targets.runpod.wants import save_ahead


def orders(
    options: Mapping[str, Any], *, run: str, keys: PodKeys, limit: tuple[int, str], api_url: str, secrets: Sequence[str]
) -> dict[str, str]:
    """The environment of a pod.

    Args:
        options: the target's, as the run recorded them.
        run: its id.
        keys: what opens the pod, and what it proves itself with.
        limit: its longest life in seconds, and what that comes from.
        api_url: as the pod reaches it.
        secrets: texts that must not get into it.

    Raises:
        UsageError: the target's own variables are not fit for a pod.
    """
    seconds, why = limit

    def minutes(name: str) -> int:
        return max(1, round(60 * float(options[name])))

    plan = PodPlan(
        run=run,
        mark=str(options.get("mark") or ""),
        public_key=keys.client,
        host_key_secret=keys.secret,
        max_seconds=seconds,
        max_reason=why,
        boot_grace=minutes("boot_grace_minutes"),
        lease=minutes("lease_minutes"),
        stall=minutes("stall_minutes"),
        grace=minutes("retrieve_grace_minutes"),
        save_ahead=save_ahead(seconds),
        tick=max(1, round(float(options["watchdog_seconds"]))),
        api_url=api_url,
    )
    return pod_env(plan, secrets)
