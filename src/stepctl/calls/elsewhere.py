"""The same ``--key`` on another machine: its pod is found by its mark, and the bucket says when it has committed.

A runner that is thrown away takes its run store and the pod's keys with it, so there is no SSH to that pod.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stepctl.base.errors import LineageConflict
from stepctl.calls.away import is_staged, mark_of
from stepctl.calls.follow import TimedOut
from stepctl.calls.prepare import Prepared
from stepctl.calls.request import TrainRequest
from stepctl.calls.spending import open_api
from stepctl.calls.world import World
from stepctl.config.model import RunpodTarget
from stepctl.lineage.buckets import is_hub
from stepctl.lineage.store import by_key, read_lineage
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.end import MISSES
from stepctl.targets.runpod.logs import standing
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod
from stepctl.targets.runpod.sweep import Rented, end_rented, sweep

_TICKS = 4
"""Of a pod's watchdog: it tells of a job's end at its next one, and a job has a little to do after its commit."""


def wait_elsewhere(world: World, request: TrainRequest, prepared: Prepared) -> None:
    """Wait while a pod that another machine rented for this very call is there, unless the key is committed by then.

    A key that is committed before anybody asks is answered from the bucket alone. When the wait is over, a pod whose
    time is over is ended, and one whose job ends within a few looks of its watchdog; any other may work for somebody
    else, and has its own guard.

    Raises:
        LineageConflict: there is one, and the call must not wait.
        TimedOut: it takes longer than the call was given.
        PodAlive: its end could not be confirmed.
    """
    settings = prepared.settings
    options = settings.targets.get(settings.target)
    if request.key is None or not isinstance(options, RunpodTarget) or _committed(prepared, request.key):
        return
    until = math.inf if request.timeout is None else world.now() + request.timeout
    api = open_api(options)
    try:
        pace = Pace(options.poll_seconds, sleep=world.wait, now=world.now)
        # A bucket that other machines have too, and a list that may lag: one look would train twice.
        misses = 0 if is_hub(settings.bucket) else MISSES - 1
        wait = _Wait(world, api, pace, mark_of(settings, request.key), misses=misses)
        while wait.goes_on():
            if _committed(prepared, request.key):
                bound = 0.0 if request.no_wait else _TICKS * options.watchdog_seconds
                wait.end_idle(min(until, world.now() + bound))
                return
            pod = wait.pods[0].pod if wait.pods else None
            if pod is not None and request.no_wait:
                raise LineageConflict(
                    f"pod {pod.id} ({pod.name}) is training this very --key, started from another machine",
                    safe="nothing was trained by this call",
                    next="repeat the command later, or leave --no-wait out",
                    code="busy",
                    details={"pod": pod.id},
                )
            if pod is not None and wait.is_new(pod):
                world.listener.notice(_waiting(pod, is_staged(settings)))
            if pod is not None and world.now() >= until:
                raise TimedOut(
                    f"the time limit passed, and pod {pod.id} is still training this --key",
                    safe="nothing was trained by this call",
                    cost=f"pod {pod.id}, until it ends itself",
                    next="repeat the command later",
                )
            wait.pace.poll()
    finally:
        api.close()


@dataclass
class _Wait:
    """Looks for pods with the call's mark whose run is not in the store here: that one is followed as any other."""

    world: World
    api: Api
    pace: Pace
    mark: str
    pods: list[Rented] = field(default_factory=list)
    told: str = ""
    misses: int = 0

    def goes_on(self) -> bool:
        """Look once more; False when none is there for some looks in a row."""
        known = set(self.world.store.names())
        found = sweep(self.api, self.world.store, self.pace, secrets=False).pods
        ours = [each for each in found if each.mark == self.mark and each.run not in known]
        self.pods = [each for each in ours if each.pod.live and not each.past_deadline]
        # What is stopped, or past its end, commits nothing any more, and may bill on.
        self._end([each for each in ours if each not in self.pods], "it does not work any more")
        self.misses = 0 if self.pods else self.misses + 1
        return self.misses < MISSES

    def is_new(self, pod: Pod) -> bool:
        """Whether nobody was told of this pod."""
        before, self.told = self.told, pod.id
        return before != pod.id

    def end_idle(self, until: float) -> None:
        """End what does nothing any more, confirmed; what still works is waited for until then."""
        there = bool(self.pods or self.told)
        while there:
            does = {each.pod.id: standing(self.api, each.pod.id) for each in self.pods}
            self._end([each for each in self.pods if does[each.pod.id] == "ended"], "its key is committed")
            self.pods = [each for each in self.pods if does[each.pod.id] not in ("ended", "kept")]
            if (not self.pods and self.misses == 0) or self.world.now() >= until:
                break
            self.pace.poll()
            there = self.goes_on()
        for each in self.pods:
            pod = each.pod.id
            self.world.listener.notice(f"pod {pod} still works, and ends itself; stepctl pod rm {pod} ends it at once")

    def _end(self, pods: list[Rented], why: str) -> None:
        for each in pods:
            self.world.listener.notice(f"pod {each.pod.id} is ended: {why}")
            end_rented(self.api, self.world.store, each, self.pace, "client", why)


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
