"""Whether a run's pod is still there, by the provider's word: one odd answer says nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from stepctl.runs.pods import PodFile
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.end import MISSES
from stepctl.targets.runpod.errors import RunpodError
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
        """Look until it is known whether it is there; a provider that cannot be asked is passed over."""
        api = self._api()
        with suppress(RunpodError):
            self._look(api)
            while self.doubtful and not self.gone:
                self._pace.poll()
                self._look(api)

    def look(self) -> None:
        """Look once; a provider that cannot be asked is passed over."""
        api = self._api()
        with suppress(RunpodError):
            self._look(api)

    def _look(self, api: Api) -> None:
        attempt = self._file.load().current if self._file.exists() else None
        if attempt is None or attempt.pod is None:
            self.gone = "there is no pod of this run"
            return
        if attempt.state == "gone":
            self.gone = f"pod {attempt.pod} is gone"
            return
        pod = api.pod(attempt.pod)
        if pod is None or pod.ended:
            self._misses += 1
            if self._misses >= MISSES:
                self.gone = f"pod {attempt.pod} is gone"
        elif not pod.live:
            self.gone = f"pod {attempt.pod} is {pod.status}: its container does not run any more"
        else:
            self._misses = 0
