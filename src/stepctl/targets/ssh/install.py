"""What a job needs on a machine: made there once for each release and Python, and found again by its content."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stepctl
from stepctl.targets.ssh import errors, wheel
from stepctl.targets.ssh.channel import Ended, Stream, shell_path
from stepctl.targets.ssh.connect import Connection

_AGAIN = "call again"
_NEXT = {
    "old_python": 'name a newer one in the target: python = "python3.12"',
    "no_venv": "check venv in the target",
    "no_packages": "install them there, or leave venv out of the target: stepctl then makes one of its own",
    "no_venv_module": "install it there (Debian, Ubuntu: apt install python3-venv), or name another python or a venv",
    "no_pip": "install it there (Debian, Ubuntu: apt install python3-venv), or name another python or a venv",
    "no_space": "make room there, or name another workdir in the target",
    "pip": "mend that, or prepare a virtual environment there and name it in the target: venv = ...",
    "os_error": "mend that, or name another workdir in the target",
    "cut": _AGAIN,
}


@dataclass(frozen=True)
class Where:
    """How a machine is used: settings of the target."""

    workdir: str = "~/.stepctl"
    python: str = "python3"
    venv: str | None = None
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Absolute paths on the machine: its working directory, the run's folder, the trainer's Python."""

    root: str
    job: str
    python: str


def prepare(
    connection: Connection,
    where: Where,
    run: str,
    notice: Callable[[str], None],
    lease: str | None = None,
    wanted: Callable[[], None] = lambda: None,
) -> Place:
    """Make sure that the machine has what the job needs, and a folder for the run. Repeating it installs nothing.

    ``wanted`` is called now and then; what it raises ends this.

    Raises:
        LinkLost: the connection broke.
        BadSetup: Python is missing or too old, the packages cannot be had, there is no room.
    """
    made = wheel.build()
    pins = wheel.pins()
    want = {
        "workdir": where.workdir,
        "venv": where.venv or "",
        "run": run,
        "wheel": made.digest,
        "size": len(made.data),
        "version": stepctl.__version__,
        "pins": hashlib.sha256(pins.encode()).hexdigest(),
        "pins_text": pins,
        "lease": lease or "",
    }
    stream = Stream(connection, f"exec {shell_path(where.python)} -c {shlex.quote(_program())}")
    try:
        stream.write(json.dumps(want).encode() + b"\n")
        told = _hear(stream, made, notice, _first(connection, where), wanted, connection.limits.setup)
    except (Ended, ValueError):
        words = stream.words()
        raise errors.BadSetup(
            f"{where.python} does not run on {connection.where}: {words or 'it ended without a word'}",
            safe="nothing was trained",
            next='install Python 3.11 or newer there, or name one in the target: python = "/path/to/python3"',
            code="no_python",
        ) from None
    finally:
        stream.close()
    if "error" in told:
        code = str(told.get("code"))
        what = " and stepctl needs 3.11 or newer" if code == "old_python" else ""
        raise errors.BadSetup(
            f"{connection.where} cannot be set up: {told['error']}{what}",
            safe="nothing was trained",
            next=_NEXT.get(code, _AGAIN),
            code=code if code in _NEXT else None,
        )
    return Place(root=str(told["root"]), job=str(told["job"]), python=str(told["python"]))


def _program() -> str:
    """The bootstrap in one line, which every login shell takes as it is."""
    text = base64.b64encode((Path(__file__).parent / "bootstrap.py").read_bytes()).decode()
    return f'import base64; exec(compile(base64.b64decode("{text}"), "bootstrap", "exec"))'


def _hear(
    stream: Stream,
    made: wheel.Wheel,
    notice: Callable[[str], None],
    first: str,
    wanted: Callable[[], None],
    limit: float,
) -> dict[str, Any]:
    """The last answer; the wheel is sent when it is asked for."""
    said = ""
    while True:
        told: dict[str, Any] = json.loads(stream.line(limit))
        wanted()
        if told.get("need") == "wheel":
            notice(first)
            stream.write(made.data)
        elif "busy" not in told:
            return told
        elif told["busy"] != said:
            said = str(told["busy"])
            notice(said)


def _first(connection: Connection, where: Where) -> str:
    return f"setting up stepctl in {where.workdir} on {connection.where} (once for each release)"
