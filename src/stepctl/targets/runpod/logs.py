"""Keeping what a pod's container says: it is gone with the pod."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Literal

from stepctl.base.files import write_atomic
from stepctl.runs.pods import PodFile
from stepctl.targets.runpod.api import Api
from stepctl.targets.runpod.errors import RunpodError

TAIL = 5000
CAPTURE_SECONDS = 15.0
SILENCE_SECONDS = 1.0
EVERY_SECONDS = 120.0


def capture(api: Api, file: PodFile, pod: str, *, silence: float = SILENCE_SECONDS) -> int:
    """Write the newest lines of a pod's log beside its record, in the place of older ones of the same pod.

    Returns:
        How many lines there are; 0 when the log cannot be read, which is no reason to fail.
    """
    lines = []
    try:
        for line in api.logs(pod, "container", TAIL, seconds=CAPTURE_SECONDS, silence=silence):
            lines.append(f"{line.ts or ''} {line.line}".strip())
    except RunpodError:
        pass
    if lines:
        text = "\n".join((f"# pod {pod}", *lines)) + "\n"
        write_atomic(file.log, text.encode(errors="replace"), mode=0o600)
    return len(lines)


Standing = Literal["", "working", "ended", "kept"]

_WORDS: dict[str, Standing] = {
    "the job has started": "working",
    "the job has ended": "ended",
    "the job is gone": "ended",
    "is kept": "kept",
}


def standing(api: Api, pod: str, *, silence: float = SILENCE_SECONDS) -> Standing:
    """What a pod does by the last word of its watchdog: its job works or has ended, or it is kept for the next call.

    Empty when that is not told.
    """
    last: Standing = ""
    with suppress(RunpodError):
        for line in api.logs(pod, "container", TAIL, seconds=CAPTURE_SECONDS, silence=silence):
            _, ours, said = line.line.partition("stepctl-watchdog: ")
            if ours:
                last = next((what for words, what in _WORDS.items() if said.startswith(words)), last)
    return last


class Capture:
    """Captures the log now and then, from a thread; ``api`` is its own, and closed by it."""

    def __init__(self, api: Api, file: PodFile, pod: str) -> None:
        self._api, self._file, self._pod = api, file, pod
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="container log", daemon=True)

    def start(self) -> None:
        """Capture from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Capture no more."""
        self._over.set()

    def _run(self) -> None:
        try:
            while not self._over.wait(EVERY_SECONDS):
                # A log that cannot be written is no reason to say anything in the middle of a run.
                with suppress(OSError):
                    capture(self._api, self._file, self._pod)
        finally:
            self._api.close()
