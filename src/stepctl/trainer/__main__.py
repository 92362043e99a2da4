"""``python -m stepctl.trainer JOBDIR``: examples and secrets on stdin, everything else in the directory."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from stepctl.jobs.directory import JobDir
from stepctl.jobs.events import EventWriter
from stepctl.trainer.engine import Engine
from stepctl.trainer.run import run_job


def _engine() -> Engine:
    from stepctl.trainer.torch_engine import TorchEngine

    return TorchEngine()


def main() -> None:
    """Run one job and leave without the interpreter's slow exit."""
    # A core dump would hold the examples.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    job_dir = JobDir(Path(sys.argv[1]))
    code = run_job(job_dir, sys.stdin.buffer, _engine, EventWriter(job_dir.events))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
