"""Whether a run's pod is still there, by the provider's word: one odd answer says nothing."""

from __future__ import annotations

from collections.abc import Callable

from stepctl.runs.pods import PodFile
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.end import MISSES, pod_alive
from stepctl.targets.runpod.errors import RunpodError
from stepctl.targets.runpod.owner import OTHER, is_other
from stepctl.targets.runpod.pace import Pace


class Presence:
    """Looks at the newest pod of a run. ``gone`` says in words why it works no more; empty while it does."""

    def __init__(self, api: Callable[[], Api], file: PodFile, pace: Pace) -> None:
        self._api, self._file, self._pace = api, file, pace
        self._misses, self._looked = 0, False
        self.gone = ""

    @property
    def doubtful(self) -> bool:
        """Whether the last answer did not know it."""
        return self._misses > 0

    def first(self) -> None:
        """Be sure once, before anything else is tried."""
        if not self._looked:
            self._looked = True
            self.be_sure()

    def be_sure(self) -> None:
        """Look until it is known whether it is there; a provider that cannot be asked is passed over.

        Raises:
            PodAlive: it is not there by the word of another account than the one that rented it.
        """
        while self._look() and self.doubtful and not self.gone:
            self._pace.poll()

    def look(self, *, answers: bool = False) -> None:
        """Look once; a provider that cannot be asked is passed over.

        Args:
            answers: whether the pod itself was heard just now: then it is there, whatever the provider says.
        """
        if answers:
            self._misses = 0
        else:
            self._look()

    def _look(self) -> bool:
        """Whether the provider could be asked."""
        attempt = self._file.load().current if self._file.exists() else None
        if attempt is None or attempt.pod is None:
            self.gone = "there is no pod of this run"
            return True
        if attempt.state == "gone":
            self.gone = f"pod {attempt.pod} is gone"
            return True
        api = self._api()
        try:
            pod = api.pod(attempt.pod)
        except RunpodError:
            return False
        odd = ""
        if pod is None or pod.ended:
            odd = "is gone"
        elif not pod.live:
            odd = f"is {pod.status}: its container does not run any more"
        self._misses = self._misses + 1 if odd else 0
        if self._misses >= MISSES:
            if is_other(api, self._file):
                raise pod_alive(self._file.load().run, [attempt], OTHER)
            self.gone = f"pod {attempt.pod} {odd}"
        return True
