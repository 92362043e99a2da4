"""What a person sees while a run goes on: a bar on a terminal, plain lines elsewhere. All on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stepctl.cli.output import write_line
from stepctl.jobs.events import (
    AnyEvent,
    Committed,
    Device,
    Done,
    Evaluation,
    Failed,
    Progress,
    Saved,
    Status,
    Transfer,
    Warned,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PHASES = {
    "judging": "judging the examples",
    "imports": "starting the trainer",
    "model": "loading the model",
    "data": "restoring the checkpoint",
    "eval": "evaluating the held-out rows",
    "steps": "training",
    "saving": "saving",
}


def duration(seconds: float) -> str:
    """``75.2`` as ``1m15s``."""
    whole = round(seconds)
    return f"{whole}s" if whole < 60 else f"{whole // 60}m{whole % 60:02d}s"


def size(count: int) -> str:
    """A number of bytes for people."""
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def event_line(event: AnyEvent) -> str | None:  # noqa: PLR0911 - one for each kind of event
    """An event as one plain line; None when it says nothing to a person."""
    match event:
        case Status(phase=phase):
            return _PHASES.get(phase)
        case Device():
            return f"on {event.device} in {event.precision}" + (f": {event.reason}" if event.reason else "")
        case Progress():
            eta = f", {duration(event.eta_sec)} left" if event.steps_done < event.steps_total else ""
            return (
                f"step {event.step} ({event.steps_done} of {event.steps_total}): loss {event.loss:.4f}, "
                f"gradient norm {event.grad_norm:.2f}, {duration(event.elapsed_sec)} so far{eta}"
            )
        case Evaluation():
            return f"held-out loss {event.when} the steps: {event.loss:.4f}"
        case Warned():
            return f"warning: {event.message}"
        case Committed():
            fork = "; it is a fork, another checkpoint is the head" if event.forked else ""
            return f"committed {event.checkpoint} ({size(event.bytes)}){fork}"
        case Saved():
            return f"saved {event.checkpoint} on the machine ({size(event.bytes)})"
        case Transfer():
            eta = f", {duration(event.eta_sec)} left" if event.eta_sec > 0 else ""
            return f"{size(event.bytes_done)} of {size(event.bytes_total)}{eta}"
        case Failed() | Done():
            return None


class Plain:
    """One line an event: for logs and pipes."""

    def event(self, event: AnyEvent) -> None:
        """Write it."""
        line = event_line(event)
        if line is not None:
            write_line(sys.stderr, line)

    def notice(self, text: str) -> None:
        """Write it."""
        write_line(sys.stderr, text)

    def close(self) -> None:
        """Nothing is open."""


class Terminal:
    """A bar with step, loss and the time left; other events as lines above it."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: Any = None
        self._carrying = False

    def event(self, event: AnyEvent) -> None:
        """Move the bar, or write a line."""
        if isinstance(event, Progress):
            self._move(event)
            return
        if isinstance(event, Transfer):
            self._carry(event)
            return
        line = event_line(event)
        if line is not None:
            self.notice(line)
        if isinstance(event, Status) and event.phase != "steps":
            self.close()

    def _move(self, event: Progress) -> None:
        if self._bar is None or self._carrying:
            self.close()
            self._bar, self._carrying = _new_bar(), False
            self._task = self._bar.add_task("training", total=event.steps_total, step=0, loss="", left="")
            self._bar.start()
        self._bar.update(
            self._task,
            completed=event.steps_done,
            step=event.step,
            loss=f"{event.loss:.4f}",
            left=duration(event.eta_sec),
        )

    def _carry(self, event: Transfer) -> None:
        """Show bytes on their way; beside the bar of the steps they are not worth one of their own."""
        if self._bar is not None and not self._carrying:
            return
        if self._bar is None:
            self._bar, self._carrying = _new_carrying(), True
            self._task = self._bar.add_task("bytes", total=event.bytes_total, left="")
            self._bar.start()
        left = duration(event.eta_sec)
        self._bar.update(self._task, completed=event.bytes_done, total=event.bytes_total, left=left)
        if event.bytes_done >= event.bytes_total:
            self.close()

    def notice(self, text: str) -> None:
        """Write a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            write_line(sys.stderr, text)

    def close(self) -> None:
        """Leave the finished bar on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as NewBar

    return NewBar(
        TextColumn("step {task.fields[step]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[left]} left"),
        console=Console(stderr=True),
    )


def _new_carrying() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as NewBar

    return NewBar(
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[left]} left"),
        console=Console(stderr=True),
        transient=True,
    )


def dollars(amount: float) -> str:
    """``$1.25``; small amounts with enough places to be seen."""
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"


def moment(text: str) -> str:
    """A recorded time without its fractions."""
    return f"{text[:19].replace('T', ' ')} UTC"


def new_display() -> Plain | Terminal:
    """The display that fits stderr."""
    return Terminal() if sys.stderr.isatty() else Plain()
