"""The same ``--key`` on another machine: its pod is found by its mark, and the bucket says when it has committed.

A runner that is thrown away takes its run store and the pod's keys with it, so there is no SSH to that pod.
"""

from __future__ import annotations

import math

from stepctl.base.errors import LineageConflict
from stepctl.calls.away import is_staged, mark_of
from stepctl.calls.follow import TimedOut
from stepctl.calls.prepare import Prepared
from stepctl.calls.request import TrainRequest
from stepctl.calls.spending import open_api
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget
from stepctl.lineage.store import by_key, read_lineage
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.records import Pod


def wait_elsewhere(world: World, request: TrainRequest, prepared: Prepared) -> None:
    """Wait while a pod that another machine rented for this very call is there, unless the key is committed by then.

    Raises:
        LineageConflict: there is one, and the call must not wait.
        TimedOut: it takes longer than the call was given.
    """
    settings = prepared.settings
    options = settings.targets.get(settings.target)
    if request.key is None or not isinstance(options, RunpodTarget):
        return
    mark = mark_of(settings, request.key)
    until = math.inf if request.timeout is None else world.now() + request.timeout
    api = open_api(options)
    told = ""
    try:
        while pods := _marked(world, api, mark):
            if _committed(prepared, request.key):
                return
            pod = pods[0]
            if request.no_wait:
                raise LineageConflict(
                    f"pod {pod.id} ({pod.name}) is training this very --key, started from another machine",
                    safe="nothing was trained by this call",
                    next="repeat the command later, or leave --no-wait out",
                    code="busy",
                    details={"pod": pod.id},
                )
            if pod.id != told:
                told = pod.id
                world.listener.notice(_waiting(pod, is_staged(settings)))
            if world.now() >= until:
                raise TimedOut(
                    f"the time limit passed, and pod {pod.id} is still training this --key",
                    safe="nothing was trained by this call",
                    cost=f"pod {pod.id}, until it ends itself",
                    next="repeat the command later",
                )
            world.wait(options.poll_seconds)
    finally:
        api.close()


def _marked(world: World, api: Api, mark: str) -> list[Pod]:
    """Pods with this mark whose run is not in the store here: that one is followed as any other."""
    known = set(world.store.names())
    env = [(pod, pod.env or {}) for pod in api.pods() if not pod.ended]
    return [pod for pod, said in env if said.get("STEPCTL_MARK") == mark and said.get("STEPCTL_RUN") not in known]


def _committed(prepared: Prepared, key: str) -> bool:
    line = by_key(read_lineage(prepared.bucket, prepared.settings.lineage).ledger, key)
    return line is not None and line.rows_done >= line.rows_total


def _waiting(pod: Pod, staged: bool) -> str:
    price = f" (${pod.price:.2f} an hour)" if pod.price else ""
    what = "its commit" if not staged else "its end: only the machine that started it can fetch what it trains"
    return (
        f"pod {pod.id}{price} is training this very --key, started from another machine: waiting for {what}; "
        f"stepctl pod rm {pod.id} ends it"
    )
