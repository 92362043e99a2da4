"""What goes wrong besides the client's death: faults of the provider, of pods and of the bucket, and the points that
they make worth dying at."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from tests.doubles.project import until
from tests.doubles.runpod import Fault, Sandbox, no_stock
from tests.matrix.cases import ALL, STRIDE, Case
from tests.matrix.follow import ROWS, block
from tests.matrix.points import CREATE, DELETE, POD, PODS, RUN, Point, ssh
from tests.matrix.rig import Rented

POINTS = {point.name: point for point in RUN}
Act = Callable[[Rented], None]


def nothing(project: Rented) -> None:
    """Neither before nor after."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A fault, and the cases in it.

    Attributes:
        points: names of ``RUN``, or points of its own; each from both sides unless ``sides`` says otherwise.
        thens: what follows, in turns.
        faults, quirks, target, env: from the start: of calls, of pods, settings of the target and others.
        first: before the call that is killed; ``between``: after its death.
        words: more words of the call that is killed.
        codes: what commands may exit with besides success, but for the last one.
        twins: pods that a fault makes may live beside the one.
        rows: rows that each key has in the end.
        moved: the provider's clock is moved.
        never: points and sides that a call does not come to.
        open: a create without an answer and without a pod may stay unresolved, which exit code 8 tells.
    """

    name: str
    points: tuple[str | Point, ...]
    sides: tuple[str, ...] = ("before", "after")
    thens: tuple[str, ...] = ("attach", "same")
    faults: tuple[Fault, ...] = ()
    quirks: Mapping[str, object] = field(default_factory=dict)
    target: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    first: Act = nothing
    between: Act = nothing
    words: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    twins: int = 0
    rows: Mapping[str, int] = field(default_factory=lambda: ROWS)
    moved: bool = False
    open: bool = False
    never: tuple[str, ...] = ()

    def cases(self) -> Iterator[Case]:
        """Each point from each side, followed by one thing."""
        number = 0
        for named in self.points:
            point = POINTS[named] if isinstance(named, str) else named
            for side in self.sides:
                if f"{point.name}-{side}" in self.never:
                    continue
                when = side if side != "before" else ("lost", "late")[number // 2 % 2]
                yield Case(point, when, self.thens[number % len(self.thens)])
                number += 1


# --- acts -------------------------------------------------------------------------------------------------------------


def restart(project: Rented) -> None:
    """The container ends, and the provider runs it again."""
    sandbox = project.sandbox
    for pod in sandbox.pods():
        for process in sandbox.processes(pod["id"]):
            if process["inner"] == 1:
                os.kill(process["pid"], signal.SIGKILL)
                sandbox.wait_event("restarted", pod["id"])
                until(partial(_listens_again, sandbox, pod["id"]))


def _listens_again(sandbox: Sandbox, pod: str) -> bool:
    """Whether its second sshd says that it listens, on the first of two addresses at least."""
    return sum("Server listening" in line for line in sandbox.logs(pod)) >= 3


def vanish(project: Rented) -> None:
    for pod in project.sandbox.pods():
        project.sandbox.end(pod["id"])


def exited(project: Rented) -> None:
    for pod in project.sandbox.pods():
        project.sandbox.set_status(pod["id"])


def kill_job(project: Rented) -> None:
    for pod in project.sandbox.pods():
        project.sandbox.signal(pod["id"], "standin.py")


def nobody(project: Rented) -> None:
    """Nobody comes until the pod has ended itself."""
    project.go()
    until(lambda: not project.sandbox.pods(), 60)


def pause(project: Rented) -> None:
    project.faults(pause_at="step:3")


def go_and_vanish(project: Rented) -> None:
    vanish(project)
    project.go()


# --- points of their own ----------------------------------------------------------------------------------------------

RESOLVE = Point("resolve", PODS, since=CREATE)
RESOLVE_4 = Point("resolve-4", PODS, nth=4, since=CREATE)
CREATE_2 = Point("create-2", CREATE, nth=2)
PACK_2 = Point("pack-2", ssh("pack"), nth=2)
DELETE_2 = Point("delete-2", DELETE, nth=2)
JOB = ("limit", "wheel", "launch", "payload", "poll-more", "over", "pack", "delete")
ENDS = ("delete", "gone-1", "gone-3", "gone-list", "last-list")
OFTEN = {"STEPCTL_TRAIN__SAVE_EVERY_MINUTES": "0.000001"}
SHORT = {"boot_grace_minutes": 0.15, "lease_minutes": 0.05, "retrieve_grace_minutes": 0.05, "stall_minutes": 0.1}

WORLDS = (
    World(
        name="answer-500",
        faults=(Fault(CREATE, when="after", status=500),),
        points=("create", RESOLVE, "pod-boot", "launch"),
    ),
    World(
        name="answer-lost",
        faults=(Fault(CREATE, when="after", drop=True),),
        points=(RESOLVE, "connect-first", "over", "gone-list"),
    ),
    World(
        name="request-lost",
        faults=(Fault(CREATE, drop=True),),
        points=(RESOLVE, RESOLVE_4, CREATE_2, "launch", "last-list"),
        open=True,
    ),
    World(
        name="twins",
        faults=(Fault(CREATE, pod={"twin": True}),),
        points=("create", "limit", "launch", "delete", DELETE_2, "last-list"),
        twins=1,
    ),
    World(
        name="twins-lost",
        faults=(Fault(CREATE, when="after", drop=True, pod={"twin": True}),),
        points=(RESOLVE, "delete", "gone-2", "launch"),
        twins=1,
    ),
    World(
        name="listed-late",
        faults=(Fault(CREATE, when="after", status=500, pod={"unlisted": 2}),),
        points=("create", RESOLVE, "pod-boot"),
    ),
    World(
        name="listed-very-late",
        faults=(Fault(CREATE, when="after", status=500, pod={"unlisted": 7}),),
        points=("create", RESOLVE_4, CREATE_2, "pod-boot", "delete"),
        twins=1,
        open=True,
    ),
    World(
        name="no-stock",
        faults=(no_stock("NVIDIA RTX A5000"),),
        points=("create", CREATE_2, "launch", "delete"),
        never=("create-after",),
    ),
    World(
        name="address-late",
        quirks={"boot": 0.2, "address": 0.4},
        points=(Point("pod-boot-3", POD, nth=3), "connect-first", "limit"),
        thens=("same", "other"),
    ),
    World(
        name="sshd-late",
        quirks={"sshd": 0.5},
        points=(Point("connect-3", ssh("connect"), nth=3), "secrets", "limit"),
        thens=("rm", "attach"),
    ),
    World(name="restarted", points=JOB, sides=("after",), between=restart, codes=(1,)),
    World(
        name="api-down",
        points=("pods-elsewhere", "add-secret", "create", "limit", "payload", "over", "delete", "gone-2"),
        sides=("after",),
        between=lambda project: project.sandbox.down(2.5),
        thens=("attach", "same", "rm"),
        codes=(1,),
    ),
    World(
        name="undying",
        quirks={"undying": 1},
        points=("delete", Point("terminate", r"^POST /v2/pods/\w+/action"), "gone-2", "launch"),
        thens=("same", "rm", "attach"),
    ),
    World(name="dies-slowly", quirks={"end": 0.3, "lingers": 2}, points=ENDS, thens=("rm", "same", "attach")),
    World(
        name="delete-500",
        faults=(Fault(DELETE, when="after", status=500),),
        points=("delete", "gone-1", "last-list"),
        sides=("after",),
    ),
    World(
        name="too-dear",
        faults=(Fault(CREATE, pod={"price": 2.0}),),
        target={"max_price_per_hour": 0.6},
        points=("create", "delete", "gone-1", "gone-list", CREATE_2, "launch"),
    ),
    World(
        name="keeping",
        words=("--keep-pod", "30m"),
        twins=1,  # a kept pod, and one of a call with another key, which cannot take it
        points=("launch", "over", Point("remove", ssh("ask remove")), Point("keep", ssh("shell"), nth=2)),
        thens=("same", "other", "attach", "rm"),
        rows=ROWS,
    ),
    World(
        name="no-secrets",
        faults=(Fault(r"/v2/account/secrets", times=0, status=403),),
        points=(Point("host-key", r"^GET /v2/pods/\w+/logs"), "connect-first", "launch", "delete"),
    ),
    World(
        name="bucket-refuses",
        between=block,
        points=("payload", "poll-more", "over", "pack", "delete"),
        thens=("mended",),
        codes=(1, 9),
    ),
    World(name="vanished", points=JOB, sides=("after",), between=vanish, codes=(1,)),
    World(name="exited", points=("connect-first", *JOB), sides=("after",), between=exited, codes=(1,)),
    World(name="job-killed", points=("payload", "poll", "pod-job"), sides=("after",), between=kill_job, codes=(1,)),
    World(
        name="saving",
        env=OFTEN,
        first=pause,
        between=Rented.go,
        points=("poll-more", "pack"),
        thens=("attach", "same", "rm", "other"),
    ),
    World(
        name="saving-vanished",
        env=OFTEN,
        first=pause,
        between=go_and_vanish,
        points=("poll-more", "pack", "pod-job"),
        codes=(1,),
    ),
    World(
        name="nobody",
        target=SHORT,
        between=nobody,
        points=("create", "connect-first", "wheel", "launch", "payload", "poll-more", "over", "pack", "delete"),
        sides=("after",),
        codes=(1,),
    ),
)


def worlds() -> list[tuple[World, Case]]:
    """All cases, or one of each eighth world."""
    found = []
    for number, world in enumerate(WORLDS):
        if not ALL and number % STRIDE:
            continue
        cases = list(world.cases())
        found += [(world, case) for case in (cases if ALL else [cases[number % len(cases)]])]
    return found
