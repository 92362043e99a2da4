"""Which account a run's pods are of: what another one does not know may live and bill all the same."""

from __future__ import annotations

from contextlib import suppress

from stepctl.runs.pods import PodFile
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.errors import RunpodError
from stepctl.targets.runpod.pace import Pace

MISSES = 3
OTHER = (
    "it was rented with another API key or at another address of the API, and only that one can tell: set "
    "RUNPOD_API_KEY and RUNPOD_API_URL to those"
)


def is_other(api: Api, file: PodFile) -> bool:
    """Whether the run's pods were rented with another key, or at another address, than ``api`` has."""
    return file.load().account not in (None, api.account)


def takes_over(api: Api, file: PodFile, pod: str, pace: Pace) -> bool:
    """Whether ``api`` may speak of a pod: with the key that rented it, or one that is seen to know it.

    A key that was replaced by another one of the same account is told by that.
    """
    if not is_other(api, file):
        return True
    for last in range(MISSES - 1, -1, -1):
        with suppress(RunpodError):
            if api.pod(pod) is not None:
                note(api, file)
                return True
        if last:
            pace.poll()
    return False


def note(api: Api, file: PodFile) -> None:
    """Enter the account in the run's record."""
    if file.load().account == api.account:
        return
    with suppress(OSError):  # a record that cannot be written keeps no pod alive
        file.update(lambda record: setattr(record, "account", api.account))
