"""Telling a process from a later one that was given the same number."""

from __future__ import annotations

import os
from pathlib import Path

from stepctl.runs.record import ProcessId

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def identify(pid: int) -> ProcessId | None:
    """The process that has this number now; None when there is none, or only its unreaped remains."""
    if _BOOT.exists():
        return _linux(pid)
    import psutil  # type: ignore[import-untyped, unused-ignore]

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return ProcessId(pid=pid, started=f"psutil:{process.create_time():.2f}")
    except psutil.Error:
        return None


def _linux(pid: int) -> ProcessId | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name, in parentheses, may hold spaces; the fields after it do not (proc(5): 3 state, 22 starttime).
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return ProcessId(pid=pid, started=f"{_BOOT.read_text().strip()}:{fields[19]}")


def myself() -> ProcessId:
    """This process."""
    me = identify(os.getpid())
    assert me is not None
    return me


def alive(process: ProcessId | None) -> bool:
    """Whether exactly this process still runs."""
    return process is not None and identify(process.pid) == process
