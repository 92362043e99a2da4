"""A job on a rented pod: an SSH machine that is got before the job, watched while it runs, and ended after it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from stepctl.base.errors import StepctlError
from stepctl.base.files import write_atomic
from stepctl.base.names import iso, utc_now
from stepctl.jobs.directory import JobDir, Payload
from stepctl.jobs.spec import JobSpec
from stepctl.runs.pods import Attempt, PodFile, PodRecord
from stepctl.runs.record import ProcessId, RunRecord
from stepctl.runs.store import RunStore
from stepctl.targets.base import Freight, GivenUp, MachineGone, Teller
from stepctl.targets.runpod import kept
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.apikey import api_key, api_url
from stepctl.targets.runpod.attempts import change, clock
from stepctl.targets.runpod.choose import choose
from stepctl.targets.runpod.command import LEASE, LIMITS, MARK, TAKEN, PodPlan, pod_env, start_command
from stepctl.targets.runpod.create import make_pod
from stepctl.targets.runpod.end import end_all, require_owner
from stepctl.targets.runpod.keys import PodKeys, close_secret, prepare_keys
from stepctl.targets.runpod.login import Login
from stepctl.targets.runpod.logs import SILENCE_SECONDS, Capture, capture
from stepctl.targets.runpod.pace import Pace
from stepctl.targets.runpod.presence import Presence
from stepctl.targets.runpod.ready import wait_ready
from stepctl.targets.runpod.records import moment
from stepctl.targets.runpod.sweep import tell_strays
from stepctl.targets.runpod.wants import VOLUME_PATH, Wants, limit_at, limit_of, save_ahead, wants_of
from stepctl.targets.ssh.errors import LinkLost, Unreachable
from stepctl.targets.ssh.install import Where
from stepctl.targets.ssh.machine import Pace as SshPace
from stepctl.targets.ssh.machine import SshMachine

LOOK_POLLS = 6
"""Polls between two looks at a pod whose job answers: its own watchdog guards it meanwhile."""

_FETCHES = 4
_SLICE = 0.25


class PodMachine:
    """See :class:`stepctl.targets.base.Machine`."""

    def __init__(self, options: Mapping[str, Any], job: JobDir, record: RunRecord, tell: Teller) -> None:
        self._options, self._job, self._record, self._tell = options, job, record, tell
        self._file = PodFile(job.path)
        self._pace = Pace(float(options["poll_seconds"]), sleep=self._sleep)
        self._presence = Presence(lambda: self._api, self._file, self._pace)
        self._getting, self._has_job = False, record.job is not None
        self._abandoned = ""
        self._next_look = 0.0
        self._capture: Capture | None = None

    # --- what it is made of -------------------------------------------------------------------------------------------

    @cached_property
    def _api(self) -> Api:
        url = api_url(self._options.get("api_url"), os.environ)
        return Api(url, self._key, first_pause=min(1.0, self._pace.poll_seconds))

    @cached_property
    def _key(self) -> str:
        return api_key(self._options.get("api_key_command"), os.environ)

    @property
    def _env(self) -> dict[str, str]:
        """Variables for the trainer."""
        return {str(name): str(value) for name, value in self._options.get("env", {}).items()}

    @cached_property
    def _login(self) -> Login:
        return Login(self._api, self._file, self._tell)

    @cached_property
    def _ssh(self) -> SshMachine:
        volume = self._options.get("network_volume_id")
        home = f"{VOLUME_PATH}/stepctl" if volume else "/root/.stepctl"
        env = {"HF_HOME": f"{VOLUME_PATH}/stepctl/hf", **self._env} if volume else self._env
        return SshMachine(
            job=self._job,
            run=self._record.run,
            endpoint_of=self._login.endpoint,
            where=Where(workdir=home, python=self._options["python"], venv=self._options.get("venv"), env=env),
            staged=self._record.staged,
            tell=self._tell,
            process=self._record.job,
            lease=LEASE,
            mark=MARK,
            wanted=self._wanted,
            # Only an emulated provider is asked faster than a job is.
            pace=SshPace(poll=min(SshPace.poll, self._pace.poll_seconds)),
        )

    def _sleep(self, seconds: float) -> None:
        """Wait, and give up when a cancel comes from elsewhere while the pod is being got."""
        end = time.monotonic() + seconds
        while True:
            self._wanted()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(_SLICE, left))

    def _wanted(self) -> None:
        """Raises :class:`GivenUp` when a cancel came from elsewhere while the pod is being got."""
        if self._getting and self._job.requested() is not None:
            raise GivenUp("the run was cancelled before its job existed", safe="nothing was trained")

    # --- getting it ---------------------------------------------------------------------------------------------------

    @property
    def staged(self) -> bool:
        return self._record.staged

    def prepare(self, freight: Freight) -> None:
        """Rent, wait until it lets us in, install, bring the freight; every word to the pod renews its lease."""
        self._getting = True
        if not self._file.exists():
            run, target, forecast = self._record.run, self._record.target, self._record.forecast
            self._file.save(PodRecord(run=run, target=target, forecast=forecast, account=self._api.account))
        require_owner(self._api, self._file, self._pace)
        tell_strays(self._api, RunStore(self._job.path.parent), self._pace, self._tell)
        attempt = kept.claim(self._file, self._options, self._api, self._pace, self._tell, self._fits) or self._make()
        grace = 60 * float(self._options["boot_grace_minutes"])
        attempt = wait_ready(self._api, self._file, attempt, self._login.probe, self._pace, self._tell, grace=grace)
        close_secret(self._api, self._file)
        self._tighten(attempt)
        self._wanted()
        self._ssh.prepare(freight)
        self._wanted()
        self._getting = False

    def _wants(self) -> Wants:
        need = float(self._options.get("need_gb") or 0.0)
        return wants_of(self._options, run=self._record.run, need_gb=need, args=start_command(), env={})

    def _make(self) -> Attempt:
        wants = self._wants()

        def env() -> dict[str, str]:
            return pod_env(self._plan(prepare_keys(self._api, self._file), wants), (self._key,))

        # Without the key that they were given no pod of an earlier start lets us in.
        adopt = self._file.client_key.exists()
        return make_pod(self._api, self._file, wants, self._pace, self._tell, env, adopt=adopt)

    def _plan(self, keys: PodKeys, wants: Wants) -> PodPlan:
        """What the pod is told; what follows from its price is added when it is asked for."""

        def seconds(name: str) -> int:
            return max(1, round(60 * float(self._options[name])))

        life, why = limit_of(wants, None)
        return PodPlan(
            run=self._record.run,
            mark=str(self._options.get("mark") or ""),
            public_key=keys.client,
            host_key_secret=keys.secret,
            max_seconds=life,
            max_reason=why,
            boot_grace=seconds("boot_grace_minutes"),
            lease=seconds("lease_minutes"),
            stall=seconds("stall_minutes"),
            grace=seconds("retrieve_grace_minutes"),
            save_ahead=save_ahead(life),
            tick=round(float(self._options["watchdog_seconds"])),
            api_url=self._api.url,
            env=self._env,
        )

    def _fits(self, attempt: Attempt) -> bool:
        """Whether the call would take a pod with these GPUs."""
        wants = self._wants()
        candidates = choose(self._api.gpus(wants.gpu_count, wants.cloud), wants).candidates
        return any(candidate.gpu.id == attempt.gpu_type for candidate in candidates)

    def _tighten(self, attempt: Attempt) -> None:
        """The real price may leave less time than the listed one, from which the pod's own limit was made."""
        seconds, why = limit_at(self._wants(), attempt.listed_price, attempt.price)
        created, taken = moment(attempt.created_at), moment(attempt.billed_from)
        if created is not None and taken is not None:
            # The caps of a call that takes a kept pod count from there; those of the call that made it stay.
            seconds += int((taken - created).total_seconds())
            until = iso(created + timedelta(seconds=seconds))
            change(self._file, attempt, deadline_at=min(until, attempt.deadline_at or until))
        lines = f"MAX_SECONDS={seconds}\\nMAX_REASON={why}\\n"
        keep = f"touch {kept.KEEP}" if self._options.get("keep_sec") else f"rm -f {kept.KEEP}"
        if not self._login.does(f"{keep} && printf '{lines}' > {LIMITS}.new && mv {LIMITS}.new {LIMITS}"):
            raise StepctlError(
                f"pod {attempt.pod} does not take its limits: it could cost more than it may",
                safe="nothing was trained",
                next="repeat the command",
                code="no_limits",
            )

    # --- the job ------------------------------------------------------------------------------------------------------

    def start(self, spec: JobSpec) -> ProcessId:
        process = self._ssh.start(spec)
        self._has_job = True
        self._change(state="working", working_at=iso(self._api.server_time() or utc_now()))
        return process

    def find(self) -> ProcessId | None:
        return self._ssh.find()

    def send(self, payload: Payload) -> None:
        self._ssh.send(payload)

    def sync(self) -> None:
        """Bring what is new; a pod that is gone is noticed, and an API that cannot be asked is passed over."""
        self._presence.first()
        if not self._gone:
            self._start_capture()
            try:
                self._ssh.sync()
            except StepctlError:
                self._presence.be_sure()
                if not self._gone:
                    raise
            self._look_now_and_then()
        if self._gone:
            self._note_reason()

    def _look_now_and_then(self) -> None:
        now = self._pace.now()
        if now >= self._next_look:
            polls = 1 if self._ssh.lost or self._presence.doubtful else LOOK_POLLS
            self._next_look = now + polls * self._pace.poll_seconds
            self._presence.look(answers=self._ssh.answers)

    @property
    def _gone(self) -> str:
        return self._presence.gone or self._abandoned

    def _note_reason(self) -> None:
        """A pod that ended itself took its reason along; that its time was over is known here too."""
        attempt = self._attempt()
        deadline = moment(attempt.deadline_at) if attempt is not None else None
        if attempt is None or deadline is None or self._job.reason.exists() or self._job.requested() is not None:
            return
        if (self._api.server_time() or utc_now()) >= deadline:
            _, why = limit_at(self._wants(), attempt.listed_price, attempt.price)
            self._job.control.mkdir(exist_ok=True)
            write_atomic(self._job.reason, why.encode())

    def alive(self) -> bool:
        if self._job.exit_code.exists():
            return False
        self._presence.first()
        return not self._gone and self._ssh.alive()

    @property
    def lost(self) -> bool:
        return self._ssh.lost

    def death(self) -> str:
        return self._gone or self._ssh.death()

    def request(self, what: str) -> None:
        self._ssh.request(what)

    def signal(self, name: str) -> None:
        if name == "KILL" and self._ssh.lost:
            # Nothing gets to the job; but its pod can be ended with it.
            self._abandoned = "its pod could not be reached, and is ended with it"
        else:
            self._ssh.signal(name)

    def retrieve(self, lineage: str, known: Sequence[str]) -> list[Path]:
        self._presence.first()
        for last in range(_FETCHES - 1, -1, -1):
            if self._gone:
                break
            try:
                return self._ssh.retrieve(lineage, known)
            except StepctlError as error:
                self._presence.be_sure()
                if not self._gone and (not last or not isinstance(error, LinkLost | Unreachable)):
                    raise
                self._pace.poll()
        self._note_reason()
        raise MachineGone(self._gone, safe="what was fetched and committed before", details={"by": self._already()})

    # --- letting it go ------------------------------------------------------------------------------------------------

    def release(self, *, keep: bool = False) -> None:
        """End every pod of the run, and wait until the provider confirms it; or keep the one that worked.

        Raises:
            PodAlive: that could not be confirmed.
        """
        self._getting = False
        self._stop_capture()
        if not self._file.exists():
            return
        if keep:
            self._keep()
        self._take_leave()
        why = "its work is done" if self._has_job else "its job never started"
        try:
            end_all(self._api, self._file, self._pace, "client", why, already=self._already(), spare_kept=True)
        except StepctlError:
            self._dismiss()
            raise

    def _dismiss(self) -> None:
        """Tell a pod that we could not end that nobody wants anything of it: its own call may get through."""
        attempt = self._attempt()
        if self._has_job and attempt is not None and attempt.state == "ending" and not self._gone:
            with contextlib.suppress(StepctlError):
                self._login.does(f'job=$(cat {MARK}) && touch "$job/{TAKEN}"')

    def _keep(self) -> None:
        """Leave the pod that worked for the next call, where that is wanted and it can be told."""
        attempt, seconds = self._attempt(), self._options.get("keep_sec")
        if seconds and attempt is not None and attempt.state == "working" and not self._gone:
            with contextlib.suppress(StepctlError):
                self._ssh.release()
                kept.keep(self._login, self._file, attempt, float(seconds), self._tell)

    def _take_leave(self) -> None:
        """What is worth doing before the end, as far as the pod still answers."""
        attempt = self._attempt()
        if attempt is None or attempt.pod is None or attempt.state in ("gone", "ending", "kept") or self._gone:
            return
        with contextlib.suppress(OSError):
            capture(self._api, self._file, attempt.pod, silence=min(SILENCE_SECONDS, 4 * self._pace.poll_seconds))
        if self._options.get("network_volume_id"):
            # The volume outlives the pod.
            with contextlib.suppress(StepctlError):
                self._ssh.release()

    def _already(self) -> str:
        """Who ended a pod that is gone before we asked: its own watchdog, where one of its rules can have done it."""
        job, options, attempt = self._job, self._options, self._attempt()
        if not self._has_job:
            return "provider" if attempt is not None and self._is_young(attempt) else "pod"
        if job.reason.exists() or self._ssh.death() or self._committed_itself():
            return "pod"
        heard = moment(attempt.working_at) if attempt is not None else None
        if job.events.exists():
            heard = datetime.fromtimestamp(job.events.stat().st_mtime, UTC)
        patience = 60 * min(float(options["stall_minutes"]), float(options["retrieve_grace_minutes"]))
        return "provider" if heard is None or (utc_now() - heard).total_seconds() < patience else "pod"

    def _committed_itself(self) -> bool:
        """Whether the job told that its checkpoint is in the bucket on the Hub: its pod ends itself at once then."""
        try:
            state = json.loads(self._job.result.read_bytes())["state"]
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return not self._record.staged and state in ("done", "stopped")

    def _is_young(self, attempt: Attempt) -> bool:
        """Whether neither the lease nor the boot grace of a pod without a job can be over."""
        made, ready = moment(attempt.created_at), moment(attempt.ready_at)
        if made is None:
            return False
        since, now = max(made, ready or made), clock(self._api, self._pace)
        lease, boot = (timedelta(minutes=float(self._options[n])) for n in ("lease_minutes", "boot_grace_minutes"))
        return now - since < lease and now - made < boot

    def close(self) -> None:
        self._stop_capture()
        # What was never asked for is not made only to be closed: that would need the account's key.
        if "_ssh" in self.__dict__:
            self._ssh.close()
        if "_login" in self.__dict__:
            self._login.close()
        if "_api" in self.__dict__:
            self._api.close()

    def _start_capture(self) -> None:
        attempt = self._attempt()
        if self._capture is None and attempt is not None and attempt.pod is not None:
            self._capture = Capture(self._api.another(), self._file, attempt.pod)
            self._capture.start()

    def _stop_capture(self) -> None:
        if self._capture is not None:
            self._capture.stop()
            self._capture = None

    def _attempt(self) -> Attempt | None:
        return self._file.load().current if self._file.exists() else None

    def _change(self, **fields: Any) -> None:
        attempt = self._attempt()
        if attempt is not None:
            change(self._file, attempt, **fields)
