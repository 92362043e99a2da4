"""A job as a process: from its directory and stdin to result.json and exit_code, whatever goes wrong between."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from stepctl.base.errors import Exit, StepctlError, UsageError
from stepctl.base.files import write_atomic
from stepctl.jobs.directory import JobDir, Payload, PayloadMissing, read_payload
from stepctl.jobs.events import Done, Failed, Sink
from stepctl.jobs.spec import decode_job
from stepctl.trainer.engine import Engine, NonFinite, OutOfMemory
from stepctl.trainer.job import Cancelled, Job
from stepctl.trainer.scrub import Scrubber

_EXITS = {
    "done": Exit.DONE,
    "stopped": Exit.STOPPED,
    "cancelled": Exit.CANCELLED,
    "commit_pending": Exit.NOT_COMMITTED,
}


def _fail(job: Job, code: str, message: str, next: str = "", exit_code: Exit = Exit.FAILED, **details: object) -> None:
    job.result.state = "failed"
    job.result.error = {
        "code": code,
        "message": message,
        "next": next,
        "details": details,
        "exit_code": int(exit_code),
    }
    job.emit(Failed(code=code, message=message, next=next, details=details))


def _settle(job: Job) -> None:
    """After a failure only what is committed counts."""
    result, spec = job.result, job.spec
    if result.state in {"failed", "cancelled"}:
        job.look_again()
        steps = job.committed_step - spec.from_step if result.checkpoint else 0
        del result.losses[steps:]
        result.step = spec.from_step + steps
        result.rows_done = min(spec.trace.rows_start + steps * spec.train.grad_accum, spec.trace.rows_total)


def _rows_of_step(job: Job, step: int) -> list[int]:
    """1-based ordinals in the trace of the rows that ``step`` trains on."""
    group, start = job.spec.train.grad_accum, job.spec.trace.rows_start
    first = start + (step - job.spec.from_step - 1) * group
    return list(range(first + 1, min(first + group, job.spec.trace.rows_total) + 1))


def _guarded(job: Job, payload: Payload, scrubber: Scrubber) -> None:
    saved = "the head is the last committed checkpoint"
    try:
        job.run(payload)
    except Cancelled:
        job.result.state = "cancelled"
    except NonFinite as error:
        rows = _rows_of_step(job, error.step)
        _fail(
            job,
            "non_finite",
            f"{error.what} is not finite at step {error.step} (rows {rows[0]} to {rows[-1]} of the trace); "
            f"nothing of that step is committed, {saved}",
            "look at those rows, or lower --learning-rate",
            step=error.step,
            rows=rows,
        )
    except (OutOfMemory, MemoryError) as error:
        text = f"out of memory: {scrubber.clean(str(error))}; {saved}"
        _fail(job, "out_of_memory", text, "lower --max-length, or use a machine with more memory")
    except StepctlError as error:
        # What was asked for cannot be had (a device, a module): wrong usage, though only the machine could tell.
        code = error.exit_code if isinstance(error, UsageError) else Exit.FAILED
        _fail(job, error.code, error.message, error.next, code)
    except OSError as error:
        _fail(job, "os_error", f"{scrubber.clean(str(error))}; {saved}", "make room or mend the path, then call again")
    except Exception as error:  # noqa: BLE001 - whatever a library raises, the result says so
        print(scrubber.trace(error), flush=True)  # noqa: T201 - stdout is the job's log
        text = f"{type(error).__name__}: {scrubber.clean(str(error))}"
        _fail(job, "trainer_error", f"the trainer failed: {text}; {saved}", f"stepctl runs logs {job.spec.run}")


def run_job(job_dir: JobDir, stdin: BinaryIO, make_engine: Callable[[], Engine], emit: Sink) -> int:
    """Run the job in ``job_dir``; result.json and exit_code are its last writes.

    Returns:
        The process's exit code, one of :class:`stepctl.base.errors.Exit`.
    """
    told = job_dir.job.read_bytes()
    spec = decode_job(told)
    job = Job(job_dir, spec, make_engine(), emit)
    try:
        payload = read_payload(stdin)
    except PayloadMissing as error:
        _fail(job, "needs_trace", error.message, f"stepctl train attach {spec.run}")
        job.result.state = "needs_trace"
    else:
        _on_term(job)
        _guarded(job, payload, Scrubber((*payload.trace, *payload.eval)))
    _settle(job)
    code = _EXITS.get(job.result.state, Exit.FAILED)
    if job.result.state == "failed" and job.result.error:
        code = Exit(job.result.error["exit_code"])
    if job.result.forked and code in (Exit.DONE, Exit.STOPPED):
        code = Exit.CONFLICT
    emit(Done(state=job.result.state))
    if not job_dir.job.exists() or job_dir.job.read_bytes() != told:
        # The run was started again meanwhile, in this folder: its result is not ours to write.
        return int(code)
    write_atomic(job_dir.result, msgspec.json.encode(job.result))
    write_atomic(job_dir.exit_code, f"{int(code)}\n".encode())
    return int(code)


def _on_term(job: Job) -> None:
    """TERM with a cancel request ends at once, but for a commit; without one (a shutdown) it asks for a save."""

    def handle(*_: object) -> None:
        if job.dir.requested() != "cancel":
            job.dir.request("stop")
        elif not job.committing:
            raise Cancelled

    signal.signal(signal.SIGTERM, handle)
