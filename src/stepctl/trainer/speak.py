"""How the small trainer processes answer: one JSON line on stdout, whatever happens, and a quick end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from stepctl.base.errors import StepctlError
from stepctl.trainer.engine import OutOfMemory


def answer(work: Callable[[], Any], out: BinaryIO) -> int:
    """Write what ``work`` returns as one JSON line, or ``{"error": {"message", "next"}}`` when it raises.

    What libraries print meanwhile goes to stderr.

    Returns:
        The exit code, 0 or 1.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            line, code = msgspec.json.encode(work()), 0
    except StepctlError as error:
        line, code = _error(error.message, error.next), 1
    except OutOfMemory as error:
        line, code = _error(f"memory ran out: {error}", "take a shorter prompt, a smaller model or another device"), 1
    except Exception as error:  # noqa: BLE001 - whoever started this process reads JSON and nothing else
        first = (str(error).splitlines() or [""])[0]
        line, code = _error(f"{type(error).__name__}: {first}", ""), 1
    out.write(line + b"\n")
    out.flush()
    return code


def _error(message: str, next: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "next": next}})


def leave(code: int) -> None:
    """End the process now: tearing torch down takes seconds and does nothing for anybody."""
    sys.stderr.flush()
    os._exit(code)
