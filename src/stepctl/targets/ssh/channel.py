"""Commands on a machine: their output without a login shell's noise, and requests to the agent with time limits."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Sequence

import msgspec
import paramiko

from stepctl.base.archive import PACKET
from stepctl.jobs.remote import MARK, PROTOCOL, Ask, Told, line
from stepctl.targets.ssh import errors
from stepctl.targets.ssh.connect import Connection

_SLICE = 0.25
_WINDOW = 1 << 21
_SURE = 0.5
_WORDS = 1 << 16
_MUCH = 1 << 18
_GATHER = 0.002
_PIECE = 8 * PACKET
"""What must get through within the limit of an answer."""


class Ended(Exception):
    """The command has ended: there is nothing more to read, or nobody to write to."""


class Stream:
    """The stdin and stdout of a command. Its stderr is read along, so that it never blocks, and its end is kept."""

    def __init__(self, connection: Connection, script: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Start ``script`` in a POSIX shell, whatever the login's shell is.

        Raises:
            LinkLost: the connection broke.
        """
        self._connection, self._clock = connection, clock
        self._channel = connection.open()
        with connection.within(connection.limits.channel):
            self._channel.exec_command("exec sh -c " + shlex.quote(f"printf '\\n{MARK}\\n'; {script}"))
        self._marked = False
        self._buffer = bytearray()
        self._errors = bytearray()

    def recv(self, size: int, limit: float | None = None) -> bytes:
        """Some bytes of the output; empty when the command has ended.

        Raises:
            LinkLost: nothing came for ``limit`` seconds (else the connection's), or the connection broke.
        """
        seconds = self._connection.limits.answer if limit is None else limit
        deadline = self._clock() + seconds
        while True:
            data = self._some(max(min(_SLICE, deadline - self._clock()), 0.0), size)
            if data is not None:
                return data
            if self._clock() >= deadline:
                self._connection.close()
                raise self._connection.lost()

    def recv_into(self, room: memoryview) -> int:
        """As :meth:`recv`, into ``room``; returns how many bytes. For long streams: it may come a moment later."""
        data = self.recv(len(room))
        room[: len(data)] = data
        if len(data) < _MUCH:
            # To wake for every packet takes the interpreter from the thread that decrypts: let some gather.
            time.sleep(_GATHER)
        return len(data)

    def _some(self, wait: float, size: int) -> bytes | None:
        """What is there within ``wait`` seconds; None when nothing came, empty at the end."""
        if not self._marked:
            self._pass_noise(wait)
        if self._marked and self._buffer:
            data = bytes(self._buffer[:size])
            del self._buffer[:size]
            return data
        return self._raw(wait, size) if self._marked else None

    def _raw(self, wait: float, size: int = _WINDOW) -> bytes | None:
        channel = self._channel
        while channel.recv_stderr_ready():
            self._errors += channel.recv_stderr(_WORDS)
            del self._errors[:-_WORDS]
        channel.settimeout(wait)
        try:
            data: bytes = channel.recv(size)
        except TimeoutError:
            return None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._connection.lost(error) from error
        if not data:
            self._check()
        return data

    def _check(self) -> None:
        """The end of a channel is the command's own end only when its exit code came, or the connection stays."""
        deadline = self._clock() + _SURE
        while self._channel.exit_status == -1 and self._connection.alive and self._clock() < deadline:
            time.sleep(_SURE / 20)
        if not self._connection.alive:
            raise self._connection.lost()

    def _pass_noise(self, wait: float) -> None:
        data = self._raw(wait)
        if data == b"":
            raise Ended
        self._buffer += data or b""
        _, mark, rest = bytes(self._buffer).partition(f"\n{MARK}\n".encode())
        if mark:
            self._marked, self._buffer = True, bytearray(rest)

    def line(self, limit: float | None = None) -> bytes:
        """A whole line without its end.

        Raises:
            Ended: the command ended before that.
            LinkLost: as :meth:`recv`.
        """
        found = bytearray()
        while b"\n" not in found:
            data = self.recv(_WINDOW, limit)
            if not data:
                raise Ended
            found += data
        first, _, rest = found.partition(b"\n")
        self._buffer[:0] = rest
        return bytes(first)

    def line_within(self, wait: float) -> bytes | None:
        """As :meth:`line`, but None when none is whole after ``wait`` seconds; what has come of it is kept."""
        deadline = self._clock() + wait
        found = bytearray()
        while b"\n" not in found:
            data = self._some(max(deadline - self._clock(), 0.0), _WINDOW)
            if data == b"":
                raise Ended
            found += data or b""
            if b"\n" not in found and self._clock() >= deadline:
                self._buffer[:0] = found
                return None
        first, _, rest = found.partition(b"\n")
        self._buffer[:0] = rest
        return bytes(first)

    def write(self, data: bytes | memoryview) -> None:
        """Write all of it.

        Raises:
            Ended: the command ended before it took it.
            LinkLost: the connection broke, or nothing was taken for the connection's limit.
        """
        connection, left = self._connection, memoryview(data)
        try:
            with connection.corked(len(left) >= _PIECE):
                self._send(left)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if not isinstance(error, TimeoutError):
                self._check()
                raise Ended from error
            connection.close()
            raise connection.lost(error) from error

    def _send(self, left: memoryview) -> None:
        connection = self._connection
        while left:
            with connection.guarded(connection.limits.answer):
                self._channel.settimeout(connection.limits.answer)
                self._channel.sendall(left[:_PIECE])
            left = left[_PIECE:]

    def flush(self) -> None:
        """Everything is sent already."""

    def shut(self) -> None:
        """End the command's stdin."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def close(self) -> None:
        """Let go of the command."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def words(self) -> str:
        """The last line of what the command wrote to stderr."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            deadline = self._clock() + 1.0
            self._channel.settimeout(1.0)
            while self._clock() < deadline and (data := self._channel.recv_stderr(_WORDS)):
                self._errors += data
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


class Agent:
    """The agent's ``serve``: one question after the other."""

    def __init__(self, connection: Connection, stream: Stream, job: str) -> None:
        self.connection, self.job, self._stream = connection, job, stream
        self._owed = 0

    def post(self, ask: Ask) -> None:
        """Send a question; :meth:`answer` has its answer."""
        try:
            self._stream.write(line(ask))
        except Ended:
            raise self._gone() from None
        self._owed += 1

    def answer(self, wait: float) -> Told | None:
        """The answer to the last question; None when it is not there after ``wait`` seconds.

        Raises:
            LinkLost: the agent or the connection is gone.
        """
        try:
            raw = self._stream.line_within(wait)
        except Ended:
            raise self._gone() from None
        if raw is None:
            return None
        self._owed -= 1
        try:
            return msgspec.json.decode(raw, type=Told)
        except msgspec.MsgspecError as error:
            self.connection.close()
            raise errors.lost(self.connection.where, f"the agent says something else: {error}") from error

    def ask(self, ask: Ask, limit: float | None = None) -> Told:
        """Ask, and wait for the answer; those to earlier questions that nobody took are passed over.

        Raises:
            LinkLost: none in time.
        """
        seconds = self.connection.limits.answer if limit is None else limit
        self.post(ask)
        while (told := self.answer(seconds)) is not None:
            if not self._owed:
                return told
        self.connection.close()
        raise self.connection.lost()

    def _gone(self) -> errors.LinkLost:
        words = self._stream.words()
        self.connection.close()
        return errors.lost(self.connection.where, f"the agent ended{f': {words}' if words else ''}")


def shell_path(path: str) -> str:
    """A path as a shell word; a leading ~ keeps its meaning."""
    if path == "~" or path.startswith("~/"):
        return f'"$HOME"{shlex.quote(path[1:])}' if len(path) > 1 else '"$HOME"'
    return shlex.quote(path)


def command(words: Sequence[str]) -> str:
    """Words as one shell command."""
    return shlex.join(words)


def attach(connection: Connection, workdir: str, run: str) -> Agent | None:
    """The agent that a run was set up with; None when the machine has no such run.

    Raises:
        LinkLost, BadSetup: the connection broke; the agent does not start, or is not where the job was started.
        NoWorkdir: the machine has no run at all, perhaps since its disk is not mounted.
    """
    script = (
        f"cd {shell_path(workdir)} 2>/dev/null && test -d runs || {{ echo nowhere; exit 0; }}; "
        f"test -f runs/{shlex.quote(run)}/agent || {{ echo absent; exit 0; }}; "
        f'echo "$(pwd -P)"; exec sh runs/{shlex.quote(run)}/agent serve "$(pwd -P)"'
    )
    stream = Stream(connection, script)
    try:
        first = stream.line().decode(errors="surrogateescape")
        if first in ("absent", "nowhere"):
            stream.close()
            if first == "nowhere":
                raise errors.no_workdir(connection.where, workdir, run)
            return None
        agent = Agent(connection, stream, f"{first}/runs/{run}")
        told = agent.ask(Ask(op="hello", job=agent.job))
        if told.protocol != PROTOCOL:
            raise errors.BadSetup(
                f"run {run} was set up by stepctl {told.release}, which speaks another protocol",
                safe="its job goes on",
                next=f"attach to it with stepctl {told.release}",
            )
        if told.error:
            raise errors.other_host(connection.where, told.error)
    except Ended:
        raise errors.BadSetup(
            f"no shell on {connection.where}: {stream.words() or 'the login ended at once'}"
        ) from None
    return agent
