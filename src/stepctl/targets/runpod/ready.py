"""Waiting until a pod can be logged into: RUNNING is not enough, its address must be there and a login succeed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Literal

from stepctl.base.names import iso
from stepctl.runs.pods import Attempt, PodFile
from stepctl.targets.base import Teller
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.attempts import WAITING, change, claim, of_run, stamp
from stepctl.targets.runpod.errors import BadKey, Blocked, RetiredApi, RunpodError
from stepctl.targets.runpod.keys import host_key_from_log, pin
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.records import Pod, SshAddress, moment

DENIED_SECONDS = 60.0
"""A login may be refused for so long after sshd answered: the key is written by the container's start command."""

MISSES = 3
_SLOWEST = 3
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 3.0

Word = Literal["ok", "closed", "denied"]
Probe = Callable[[str, int], Word]
"""Tries an SSH login at host and port: ``ok``; ``closed`` (nobody answers there yet); ``denied`` (sshd answers, and
does not let us in). What can never become good, such as a wrong host key, it raises."""


class NotReady(RunpodError):
    """The pod could not be logged into in its time."""

    code = "pod_not_ready"


class KeyRefused(RunpodError):
    """The pod's sshd answers, and does not take our key."""

    code = "pod_key_refused"


class PodLost(RunpodError):
    """The pod ended, or vanished, before it was ready."""

    code = "pod_lost"


def wait_ready(
    api: Api,
    file: PodFile,
    attempt: Attempt,
    probe: Probe,
    pace: Pace,
    tell: Teller,
    *,
    grace: float,
    denied: float = DENIED_SECONDS,
) -> Attempt:
    """Wait until ``probe`` gets in. Pods of unresolved creates that show meanwhile are told to end.

    Args:
        api: the account.
        file: the run's record; the host key is pinned in its ``known_hosts`` before the first probe.
        attempt: with ``pod``.
        probe: an SSH login.
        pace: of the questions.
        tell: hears what is waited for, each thing once.
        grace: seconds from the pod's creation, or since it was taken over.
        denied: seconds for which a login may be refused.

    Returns:
        The attempt, ``ready``, with its address.

    Raises:
        NotReady: it took too long.
        KeyRefused: our key is not taken.
        PodLost: the pod ended or vanished.
        RunpodError: the API key is refused. In every case the pod is the caller's to end.
    """
    return _Wait(api, file, attempt, probe, pace, tell, denied).until(grace)


class _Wait:
    def __init__(
        self, api: Api, file: PodFile, attempt: Attempt, probe: Probe, pace: Pace, tell: Teller, denied: float
    ) -> None:
        assert attempt.pod is not None
        self._api, self._file, self._attempt, self._probe = api, file, attempt, probe
        self._pace, self._tell, self._may_deny = pace, tell, denied
        self._pod = attempt.pod
        self._address: SshAddress | None = None
        self._said = self._why = ""
        self._denied_since: float | None = None
        self._misses = self._looks = 0
        self._pause = _FIRST_PAUSE

    def until(self, grace: float) -> Attempt:
        deadline = self._pace.deadline(grace - self._age())
        while True:
            self._look()
            next_look = self._pace.deadline(self._interval())
            while self._address is not None and not next_look.over:
                if self._get_in(self._address):
                    return self._ready(self._address)
                if deadline.over:
                    break
                self._pace.wait(min(self._pause, self._pace.poll_seconds))
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if deadline.over:
                raise NotReady(
                    f"pod {self._pod} could not be logged into within {grace / 60:.3g} minutes of its creation: "
                    f"{self._why or 'the provider gave no answer'}",
                    safe="nothing was trained",
                    next="repeat the command; if the image is large, raise boot_grace_minutes",
                    details={"pod": self._pod},
                )
            if not next_look.over:
                self._pace.wait(next_look.left)

    def _interval(self) -> float:
        """Seconds until the next question: six a minute are too many while an image is pulled, or a login tried."""
        self._looks += 1
        slow = 1 if self._misses else _SLOWEST if self._address else min(1 + self._looks // 6, _SLOWEST)
        return slow * self._pace.poll_seconds

    def _age(self) -> float:
        """Seconds since the pod was made, or taken over, by the provider's clock."""
        created = moment(self._attempt.billed_from) or moment(self._attempt.created_at)
        if created is None:
            return 0.0
        now = self._api.server_time() or self._pace.utc()
        return max((now - created) / timedelta(seconds=1), 0.0)

    def _say(self, why: str) -> None:
        self._why = why
        if why != self._said:
            self._said = why
            self._tell.notice(f"waiting for pod {self._pod}: {why}")

    def _look(self) -> None:
        """What the provider says of the pod now.

        Raises:
            PodLost: it ended.
        """
        try:
            pod = self._ask()
        except (BadKey, Blocked, RetiredApi):
            raise
        except RunpodError as error:
            self._say(error.message)
            return
        if pod is None:
            self._misses += 1
            if self._misses >= MISSES:
                raise self._lost("it vanished: the provider does not know it any more")
            return
        self._misses = 0
        if not pod.live:
            raise self._lost(f"its status is {pod.status}")
        if pod.address != self._address:
            self._address, self._denied_since, self._pause = pod.address, None, _FIRST_PAUSE
        if pod.address is None:
            self._say("its image is pulled and its container started; it has no SSH port yet")

    def _ask(self) -> Pod | None:
        if not any(attempt.state in WAITING for attempt in self._file.load().open):
            return self._api.pod(self._pod)
        pods = of_run(self._api.pods(), self._file.load().run)
        known = {attempt.pod for attempt in self._file.load().attempts}
        claim(self._api, self._file, pods, self._pace, ending=("client", "its create had no answer, and it came late"))
        for late in pods:
            if late.id not in known:
                self._tell.notice(f"pod {late.id} of an earlier create came late: it is deleted")
                # That it is gone is confirmed at the run's end.
                with suppress(RunpodError):
                    self._api.delete(late.id)
        return next((pod for pod in pods if pod.id == self._pod), None)

    def _get_in(self, address: SshAddress) -> bool:
        """Try a login; whether it succeeded.

        Raises:
            KeyRefused: it is refused for too long.
        """
        if not self._pinned(address):
            self._say("its host key is not in its log yet")
            return False
        word = self._probe(address.host, address.port)
        if word == "closed":
            self._denied_since = None
            self._say(f"nobody answers at {address.host} port {address.port} yet")
        elif word == "denied":
            now = self._pace.now()
            self._denied_since = now if self._denied_since is None else self._denied_since
            self._say(f"its sshd at {address.host} port {address.port} answers, and does not let us in yet")
            if now - self._denied_since > self._may_deny:
                raise KeyRefused(
                    f"pod {self._pod}: the login is refused since {now - self._denied_since:.0f} s after its sshd "
                    "answered: the run's key was not taken over by the image",
                    safe="nothing was trained",
                    next="check that the image and its start command install the key of PUBLIC_KEY",
                    details={"pod": self._pod},
                )
        return word == "ok"

    def _pinned(self, address: SshAddress) -> bool:
        if pin(self._file, address.host, address.port):
            return True
        try:
            key = host_key_from_log(self._api, self._pod)
        except RunpodError:
            return False
        if key is not None:
            self._file.update(lambda record: setattr(record, "host_key", key))
        return pin(self._file, address.host, address.port)

    def _ready(self, address: SshAddress) -> Attempt:
        first = {"state": "ready", "ready_at": stamp(self._api, self._pace)} if self._attempt.state == "made" else {}
        return change(self._file, self._attempt, ssh_host=address.host, ssh_port=address.port, **first)

    def _lost(self, why: str) -> PodLost:
        return PodLost(
            f"pod {self._pod} was lost before it was ready: {why}",
            safe="nothing was trained",
            next="repeat the command; stepctl pod ls shows what is rented",
            details={"pod": self._pod, "at": iso(self._pace.utc())},
        )
