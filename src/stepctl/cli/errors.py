"""From an exception to what a person reads, what a program reads, and the exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
from typing import TextIO

from stepctl.base.bugs import DEBUG, bug
from stepctl.base.errors import Exit, StepctlError
from stepctl.cli.output import emit_json, write_line

_REFUSED = (Exit.USAGE, Exit.TRACE_REFUSED, Exit.CONFLICT)

_UNCHANGED = "checkpoints that are stored are as they were"


def report(error: BaseException, json_mode: bool) -> int:
    """Say what happened on stderr, and with ``json_mode`` as one object on stdout.

    A stream that cannot be written is passed over. Frames' locals are never printed.

    Returns:
        The exit code for the process.
    """
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError) and _silence_broken_streams():
        return Exit.FAILED
    known = _known(error)
    # Where stderr or stdout cannot be written there is nobody to tell; the exit code still says it.
    with contextlib.suppress(OSError):
        for line in _lines(known):
            write_line(sys.stderr, line)
        if known.code == "bug" and os.environ.get(DEBUG) == "1":
            _print_traceback(error)
    if json_mode:
        with contextlib.suppress(OSError):
            emit_json(_document(known))
    return known.exit_code


def _known(error: BaseException) -> StepctlError:
    if isinstance(error, StepctlError):
        return error
    if isinstance(error, KeyboardInterrupt):
        interrupted = StepctlError("interrupted", code="interrupted")
        interrupted.exit_code = Exit.DETACHED
        return interrupted
    if isinstance(error, OSError) and error.errno is not None:
        return _system_error(error)
    return bug(error)


def _lines(error: StepctlError) -> list[str]:
    said = (("error", error.message), ("safe", error.safe), ("still costs", error.cost), ("next", error.next))
    return [f"{word}: {text}" for word, text in said if text]


def _document(error: StepctlError) -> dict[str, object]:
    return {
        "state": "refused" if error.exit_code in _REFUSED else "failed",
        "error": {
            "code": error.code,
            "message": error.message,
            "safe": error.safe,
            "cost": error.cost,
            "next": error.next,
            "details": error.details,
        },
        "exit_code": int(error.exit_code),
    }


def _system_error(error: OSError) -> StepctlError:
    """What the operating system refused, with the path where it says one."""
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    where = f": {' -> '.join(names)}" if names else ""
    what, code, remedy = {
        errno.ENOSPC: ("the disk is full", "disk_full", "free some space there, then repeat the command"),
        errno.EDQUOT: ("the disk quota is used up", "disk_full", "free some space there, then repeat the command"),
        errno.EACCES: ("permission denied", "no_permission", "make it accessible to you, or choose another place"),
        errno.EPERM: ("operation not permitted", "no_permission", "make it accessible to you, or choose another place"),
        errno.EROFS: ("the file system is read-only", "read_only", "choose a place that can be written"),
        errno.ENOENT: ("no such file or folder", "not_found", "check the path; it may have been removed meanwhile"),
    }.get(error.errno or 0, (error.strerror or type(error).__name__, "system", "mend that, then repeat the command"))
    return StepctlError(f"{what}{where}", safe=_UNCHANGED, next=remedy, code=code, details={"paths": names})


def _print_traceback(error: BaseException) -> None:
    import traceback

    for line in "".join(traceback.format_exception(error)).splitlines():
        write_line(sys.stderr, line)


def _silence_broken_streams() -> bool:
    """Whether stdout or stderr is the broken pipe; it is then pointed at nothing, so that Python's exit stays quiet.

    A broken pipe to another process must not end in silence.
    """
    broken = [stream for stream in (sys.stdout, sys.stderr) if _is_broken(stream)]
    for stream in broken:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
    return bool(broken)


def _is_broken(stream: TextIO) -> bool:
    """Whether nobody reads the other end: a pipe then reports an error without being asked for any event."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError):  # no file at all, or closed
        return False
    return bool(poll.poll(0))
