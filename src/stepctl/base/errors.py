"""The one error type: what happened, what is safe, what still costs money, what to type next, and the exit code.

The exit codes are a contract with scripts: see ``docs/commands.md``.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TRACE_REFUSED = 3
    CONFLICT = 4
    CAPPED = 5
    STOPPED = 6
    CANCELLED = 7
    POD_ALIVE = 8
    NOT_COMMITTED = 9
    TIMED_OUT = 124
    DETACHED = 130


class StepctlError(Exception):
    """A failure that a person reads.

    Attributes:
        message: what happened, one or more lines.
        safe: what is safe (where the work or the head is now); may be empty.
        cost: what still costs money; empty when nothing does.
        next: the command to type next, or what to change; may be empty.
        code: a short stable word for programs (``lineage_conflict``).
        details: structured facts for ``--json``.
        exit_code: one of :class:`Exit`.
    """

    exit_code: Exit = Exit.FAILED
    code: str = "failed"

    def __init__(
        self,
        message: str,
        *,
        safe: str = "",
        cost: str = "",
        next: str = "",
        code: str | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.safe, self.cost, self.next = message, safe, cost, next
        self.details = details or {}
        if code is not None:
            self.code = code


class UsageError(StepctlError):
    """Wrong usage or settings; nothing was started."""

    exit_code = Exit.USAGE
    code = "usage"


class TraceRefused(StepctlError):
    """The trace has rows that cannot be trained; ``details['bad']`` lists them all."""

    exit_code = Exit.TRACE_REFUSED
    code = "trace_refused"


class LineageConflict(StepctlError):
    """Another identity, another step than expected, a used key, or a fork."""

    exit_code = Exit.CONFLICT
    code = "lineage_conflict"


class DamagedCheckpoint(StepctlError):
    """A stored checkpoint does not match its manifest; it is never trained on."""

    code = "damaged_checkpoint"


class NotCommitted(StepctlError):
    """Trained and saved here, but not in the bucket yet."""

    exit_code = Exit.NOT_COMMITTED
    code = "commit_pending"
