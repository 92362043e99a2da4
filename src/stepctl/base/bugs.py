"""What is said of an exception that nobody foresaw."""

from __future__ import annotations

from pathlib import Path

from stepctl.base.errors import StepctlError

DEBUG = "STEPCTL_DEBUG"
"""At 1, the traceback of an unexpected error is printed."""

_PACKAGE = Path(__file__).parents[1]


def bug(error: BaseException) -> StepctlError:
    """Only the type and the place: a message may quote an example, and locals may hold a token."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f" at {path.relative_to(_PACKAGE)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return StepctlError(
        f"this is a bug in stepctl: {type(error).__name__}{place}",
        next=f"repeat the command with {DEBUG}=1 and report what it prints",
        code="bug",
    )
