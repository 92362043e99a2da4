"""Looking for the pods of a run in the account's list: what resolves a create whose answer was lost."""

from __future__ import annotations

from collections.abc import Collection

from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import of_run
from stepctl.targets.runpod.errors import BadKey, Blocked, RetiredApi, RunpodError
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod

LISTS = 4
"""Lists until a pod that does not show counts as absent for now: at once, and three polls of 10 s apart by default."""

MOST_FAILURES = 3


def look(api: Api, run: str, names: Collection[str], pace: Pace) -> list[Pod]:
    """The run's pods, as soon as a list shows one of every name in ``names``, else those of the last list.

    Raises:
        RunpodError: the list cannot be had; nothing is known then.
    """
    seen = failures = 0
    while True:
        try:
            pods = of_run(api.pods(), run)
        except (BadKey, Blocked, RetiredApi):
            raise
        except RunpodError:
            failures += 1
            if failures > MOST_FAILURES:
                raise
        else:
            seen += 1
            if seen >= LISTS or set(names) <= {pod.name for pod in pods}:
                return pods
        pace.poll()
