"""A machine behind SSH, as a :class:`stepctl.targets.base.Machine`: one run's directory there, and its files here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.jobs.directory import JobDir, Payload, write_payload
from stepctl.jobs.remote import Ask, Job, Launch, Launched, Told, line
from stepctl.jobs.spec import JobSpec
from stepctl.jobs.transfers import Transfers
from stepctl.runs.record import ProcessId
from stepctl.targets.base import Freight, Teller
from stepctl.targets.ssh import errors
from stepctl.targets.ssh.channel import Agent, Ended, Stream, attach, command
from stepctl.targets.ssh.connect import Connection, Limits, connect
from stepctl.targets.ssh.freight import Load, loads, model_folder
from stepctl.targets.ssh.install import Where, prepare
from stepctl.targets.ssh.link import Absence, Link, Opened
from stepctl.targets.ssh.mirror import Mirror
from stepctl.targets.ssh.route import Endpoint
from stepctl.targets.ssh.transfer import MANIFEST, TransferFailed, fetch_checkpoint, upload

_WORDS = {"stop": 1, "cancel": 2}
_TRIES = 3
_SILENT = 3.0


@dataclass(frozen=True)
class Pace:
    """Seconds: between two polls, for one look at what has come, between renewals while files go, for a launch, and
    until a working directory with a job that is not there is given up: after a restart it may be mounted late."""

    poll: float = 1.0
    look: float = 0.5
    renew: float = 20.0
    launch: float = 120.0
    absent: float = 300.0


class SshMachine:
    """One run's directory on a machine. Its files here follow those there.

    ``wanted`` is asked while the machine is made ready, which may take long: it raises when nobody wants it any more.
    """

    def __init__(
        self,
        job: JobDir,
        run: str,
        endpoint_of: Callable[[], Endpoint],
        where: Where,
        *,
        staged: bool,
        tell: Teller,
        process: ProcessId | None = None,
        lease: str | None = None,
        mark: str | None = None,
        wanted: Callable[[], None] = lambda: None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job, self._run, self._endpoint_of, self._where = job, run, endpoint_of, where
        self._staged, self._tell, self._process, self._lease, self._mark = (
            staged,
            tell,
            process,
            lease or "",
            mark or "",
        )
        self._wanted = wanted
        self._limits, self._pace, self._clock, self._sleep = limits, pace, clock, sleep
        self._mirror = Mirror(job, clock)
        self._link = Link(self._attach, clock, tell.notice)
        self._absence = Absence(clock, pace.absent)
        self._freight = Freight()
        self._state: Job | None = None
        self._asked: tuple[Agent, Ask, float] | None = None
        self._next_poll = self._renewed = 0.0
        self._signals: list[str] = []
        self._launch: Stream | None = None
        self._python = self._complaint = self._nothing = ""

    @property
    def staged(self) -> bool:
        return self._staged

    @property
    def lost(self) -> bool:
        """Whether there is no connection now."""
        return self._link.opened is None

    @property
    def answers(self) -> bool:
        """Whether the machine is heard: it is connected, and no question waits for long."""
        return not self.lost and (self._asked is None or self._clock() - self._asked[2] < _SILENT * self._pace.poll)

    # --- getting there ------------------------------------------------------------------------------------------------

    def _attach(self) -> Opened:
        try:
            connection = connect(self._endpoint_of(), self._limits)
        except StepctlError:
            self._absence.over()
            raise
        try:
            return Opened(connection, self._found(connection))
        except BaseException:
            connection.close()
            raise

    def _found(self, connection: Connection) -> Agent | None:
        try:
            agent = attach(connection, self._where.workdir, self._run)
        except errors.NoWorkdir:
            if self._expected and not self._absence.believed():
                raise
            return None
        self._absence.over()
        return agent

    @property
    def _expected(self) -> bool:
        """Whether a job was started on a machine whose disks may come after its sshd; those of a pod do not."""
        return not self._mark and (self._process is not None or self._mirror.attempt is not None)

    def _there(self) -> tuple[Connection, Agent]:
        """The run's agent, waiting for it.

        Raises:
            SshError: no connection, or the machine has nothing of this run.
        """
        opened = self._link.now()
        self._asked = None
        if opened.agent is None:
            raise errors.BadSetup(f"{opened.connection.where} has nothing of run {self._run}", code="ssh_no_run")
        return opened.connection, opened.agent

    def _ask(self, op: str, path: str = "", digest: str = "") -> Told:
        """One question to the agent, again when the connection is lost on the way.

        Raises:
            SshError: no connection. StepctlError: the agent refuses.
        """
        for last in range(_TRIES - 1, -1, -1):
            try:
                connection, agent = self._there()
                told = agent.ask(Ask(op=op, job=agent.job, lease=self._lease, path=path, digest=digest))
            except errors.LinkLost as error:
                self._link.lost(error)
                if not last:
                    raise
                continue
            if told.error:
                raise StepctlError(f"{connection.where}: {told.error}", code="ssh_agent")
            return told
        raise AssertionError

    def prepare(self, freight: Freight) -> None:
        self._freight = freight
        for last in range(_TRIES - 1, -1, -1):
            try:
                return self._prepare()
            except errors.LinkLost as error:
                self._link.lost(error)
                if not last:
                    raise
        return None

    def _prepare(self) -> None:
        opened = self._link.opened
        connection = opened.connection if opened is not None else connect(self._endpoint_of(), self._limits)
        try:
            place = prepare(connection, self._where, self._run, self._tell.notice, self._lease, self._wanted)
            agent = attach(connection, place.root, self._run)
        except BaseException:
            if opened is None:
                connection.close()
            raise
        self._link.put(Opened(connection, agent))
        self._asked, self._python = None, place.python
        told = self._ask("find")
        if told.job is not None and told.job.alive:
            return  # it found its freight when it was started
        assert agent is not None
        for load in loads(self._freight, place.root, place.job):
            self._bring(connection, agent, place.root, load)

    def _bring(self, connection: Connection, agent: Agent, root: str, load: Load) -> None:
        if self._ask("have", path=load.dest, digest=load.digest).yes:
            return
        unpacker = command(["sh", f"{agent.job}/agent", "unpack", root])
        upload(
            connection,
            unpacker,
            load.dest,
            load.files,
            digest=load.digest,
            keep=load.keep,
            report=self._reporter(agent),
        )

    def _reporter(self, agent: Agent) -> Callable[[int, int], None]:
        """Shows a transfer, and lets the machine know meanwhile that somebody is there."""
        show = Transfers(self._tell.event, self._clock)

        def report(done: int, total: int) -> None:
            show(done, total)
            self._wanted()
            if self._lease and self._clock() - self._renewed >= self._pace.renew:
                self._renewed = self._clock()
                agent.ask(Ask(op="hello", lease=self._lease))

        return report

    # --- the job ------------------------------------------------------------------------------------------------------

    def start(self, spec: JobSpec) -> ProcessId:
        connection, agent = self._there()
        told = self._translated(spec, agent.job)
        text = msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"
        self._mirror.begin(text)
        self._state = None
        deadline = self._clock() + self._pace.launch
        while True:
            try:
                launched = self._launched(connection, agent, text.decode())
            except errors.LinkLost as error:
                # Without examples, whatever was started ends by itself.
                error.safe, error.next = "nothing was trained", "call stepctl train again with the same trace"
                raise
            if launched.code != "running" or self._clock() >= deadline:
                break
            # A start whose client died waits for examples a while before it ends by itself.
            self._sleep(self._pace.look)
        if launched.error:
            raise StepctlError(
                f"the trainer cannot be started on {connection.where}: {launched.error}",
                safe="nothing was trained",
                next="check python, venv and workdir of the target",
                code="no_trainer",
            )
        self._process = ProcessId(pid=launched.pid, started=launched.started)
        return self._process

    def _translated(self, spec: JobSpec, folder: str) -> JobSpec:
        """``spec`` with the places of the machine."""
        changes: dict[str, object] = {}
        if self._staged:
            changes["bucket"] = f"{folder}/bucket"
        if spec.init_from is not None:
            changes["init_from"] = f"{folder}/init"
        if self._freight.model is not None:
            root = folder.rpartition("/runs/")[0]
            source = model_folder(root, self._freight.model_digest)
            changes["model"] = msgspec.structs.replace(spec.model, source=source)
        return msgspec.structs.replace(spec, **changes)

    def _launched(self, connection: Connection, agent: Agent, spec: str) -> Launched:
        stream = Stream(connection, f"exec sh {command([f'{agent.job}/agent'])} launch")
        launch = Launch(job=agent.job, spec=spec, python=self._python, env=self._where.env, mark=self._mark)
        try:
            stream.write(line(launch))
            launched = msgspec.json.decode(stream.line(self._pace.launch), type=Launched)
        except Ended:
            return Launched(error=stream.words() or "the agent ended without an answer")
        except msgspec.MsgspecError as error:
            stream.close()
            return Launched(error=f"the agent says something else: {error}")
        if launched.error:
            stream.close()
        else:
            self._launch = stream
        return launched

    def find(self) -> ProcessId | None:
        if self._process is not None:
            return self._process
        if self._mirror.attempt is None:
            return None
        opened = self._link.now()
        if opened.agent is None:
            return None
        told = self._ask("find").job
        if told is None or not told.pid or told.attempt != self._mirror.attempt:
            return None
        self._process = ProcessId(pid=told.pid, started=told.started)
        return self._process

    def send(self, payload: Payload) -> None:
        assert self._launch is not None
        stream, self._launch = self._launch, None
        counted, whole = _Counted(stream), False
        try:
            write_payload(cast(BinaryIO, counted), payload)
            stream.shut()
            whole = True
            told = msgspec.json.decode(stream.line(self._pace.launch), type=Launched)
        except Ended:
            if whole:
                return  # the job itself will say, as below
            told = Launched(error="its starter ended")
        except msgspec.MsgspecError as error:
            told = Launched(error=f"its starter says something else: {error}")
        except errors.LinkLost as error:
            # Whether all of it got there, the job itself will say.
            self._link.lost(error)
            return
        finally:
            stream.close()
        if told.error or told.sent != counted.count:
            self._refused(told)

    def _refused(self, told: Launched) -> None:
        with contextlib.suppress(StepctlError):
            self._poll(self._limits.answer)
        lines = self._job.log.read_text(errors="replace").strip().splitlines() if self._job.log.exists() else []
        why = told.error or (lines[-1] if lines else f"it ended with code {told.exit}")
        raise StepctlError(
            f"the trainer ended before it took the examples: {why}",
            safe="nothing was trained",
            next=f"the whole log: stepctl runs logs {self._run}",
            code="no_trainer",
        )

    # --- following ----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        if self._job.exit_code.exists() or (self._asked is None and self._clock() < self._next_poll):
            return
        first = self._state is None
        try:
            opened = self._link.soon(self._limits.connect + self._limits.login if first else self._pace.look)
            if opened is not None:
                self._poll(self._limits.answer if first else self._pace.look)
        except errors.LinkLost as error:
            self._asked = None
            self._link.lost(error)

    def _poll(self, wait: float) -> None:
        """Ask how the job is, or take the answer to that when it has come.

        Raises:
            LinkLost: it has not come for too long.
        """
        opened = self._link.opened
        if opened is None:
            return
        if opened.agent is None:
            self._state = Job()
            if self._expected:
                self._nothing = f"{opened.connection.where} has nothing of run {self._run} any more"
            self._next_poll = self._clock() + self._pace.poll
            return
        agent = opened.agent
        if self._asked is None or self._asked[0] is not agent:
            self._post(agent)
        while self._asked is not None:
            told = agent.answer(wait)
            _, ask, since = self._asked
            if told is None:
                if self._clock() - since >= self._limits.answer:
                    raise opened.connection.lost()
                return
            self._asked = None
            if told.error and told.error != self._complaint:
                self._complaint = told.error
                self._tell.notice(f"{opened.connection.where} cannot say how the job is: {told.error}")
            if told.job is not None and self._take(agent, ask, told.job):
                self._post(agent)
                wait = self._limits.answer
        self._next_poll = self._clock() + self._pace.poll

    def _post(self, agent: Agent) -> None:
        events, log = self._mirror.offsets()
        ask = Ask(op="poll", job=agent.job, events=events, log=log, lease=self._lease)
        self._asked = agent, ask, self._clock()
        agent.post(ask)

    def _take(self, agent: Agent, ask: Ask, told: Job) -> bool:
        """Take an answer over; says whether more is there already."""
        if told.attempt != self._mirror.attempt:
            # Of an earlier start, or none yet: this one has not begun.
            self._state = Job()
            return False
        whole = self._mirror.take(ask, told)
        if not told.alive and not whole and told.more:
            return True
        if told.alive or whole:
            self._state = told
        self._deliver(agent, told)
        return told.more

    def _deliver(self, agent: Agent, told: Job) -> None:
        """What was asked for while nobody could be reached."""
        wanted = self._job.requested()
        if told.alive and wanted is not None and _WORDS[wanted] > _WORDS.get(told.requested, 0):
            agent.ask(Ask(op="request", job=agent.job, what=wanted))
        while self._signals:
            agent.ask(Ask(op="signal", job=agent.job, name=self._signals[0]))
            del self._signals[0]

    def alive(self) -> bool:
        if self._job.exit_code.exists():
            return False
        if self._state is None:
            try:
                self.sync()
            except StepctlError:
                return True
        return self._state is None or self._state.alive

    def death(self) -> str:
        if self._nothing and not self._job.exit_code.exists():
            return self._nothing
        if self._state is None or self._state.alive or self._job.exit_code.exists() or not self._state.pid:
            return ""
        return "it ended without a result"

    def request(self, what: str) -> None:
        self._job.request(what)
        self._now_or_later()

    def signal(self, name: str) -> None:
        self._signals.append(name)
        self._now_or_later()

    def _now_or_later(self) -> None:
        """Deliver at once when there is a connection, or none was tried yet; else with the next one."""
        try:
            self._next_poll = 0.0
            self.sync()
        except StepctlError as error:
            self._tell.notice(f"{error.message}; the request is delivered once there is a connection")

    # --- what it saved ------------------------------------------------------------------------------------------------

    def retrieve(self, lineage: str, known: Sequence[str]) -> list[Path]:
        if self._link.now().agent is None:
            saved: list[str] = []
        else:
            saved = self._saved()
        found = {path.parent.name: path.parent for path in self._job.out.glob(f"*/{MANIFEST}")}
        for folder in saved:
            name = folder.rpartition("/")[2]
            if name not in known and name not in found:
                got = self._fetch(folder, self._job.out / name)
                if got is not None:
                    found[name] = got
        names = [name for name in found if name not in known and not name.startswith(".")]
        return [found[name] for name in sorted(names, key=lambda name: (int(name.partition("-")[0]), name))]

    def _saved(self) -> list[str]:
        told = self._ask("find").job
        return told.saved if told is not None else []

    def _fetch(self, folder: str, target: Path) -> Path | None:
        """Bring one checkpoint; None when the job has pruned it meanwhile."""
        for last in range(_TRIES - 1, -1, -1):
            connection, agent = self._there()
            packer = command(["sh", f"{agent.job}/agent", "pack", f"{agent.job}/{folder}", "."])
            try:
                return fetch_checkpoint(connection, packer, target, self._reporter(agent))
            except errors.LinkLost as error:
                self._link.lost(error)
                if not last:
                    raise
            except TransferFailed:
                if folder not in self._saved():
                    return None
                if not last:
                    raise
        raise AssertionError

    def release(self, *, keep: bool = False) -> None:
        try:
            opened = self._link.now()
            if opened.agent is not None:
                self._ask("remove", path=opened.agent.job)
                self._link.put(Opened(opened.connection, None))
        except StepctlError as error:
            left = f"{self._where.workdir}/runs/{self._run} is still on the machine"
            self._tell.notice(f"{left}: {error.message}")

    def close(self) -> None:
        self._link.close()


class _Counted:
    """Counts what goes to the trainer."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.count = stream, 0

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.count += len(data)

    def flush(self) -> None:
        self._stream.flush()
