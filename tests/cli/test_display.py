"""What a terminal shows; the bar is drawn for real."""

from __future__ import annotations

import pytest

from stepctl.cli.display import Terminal, event_line
from stepctl.jobs.events import Progress, Status, Transfer


def _progress(done: int) -> Progress:
    return Progress(
        step=done + 3,
        steps_done=done,
        steps_total=2,
        rows_done=done,
        loss=1.25,
        learning_rate=1e-4,
        grad_norm=1.0,
        tokens=5,
        supervised_tokens=3,
        elapsed_sec=1.0,
        eta_sec=61.0,
        peak_memory_bytes=1,
    )


def test_the_bar_shows_step_loss_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    display = Terminal()
    for event in (Status(phase="steps"), _progress(1), _progress(2), Status(phase="saving")):
        display.event(event)
    display.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    for text in ("training", "step 5", "2/2", "loss 1.2500", "1m01s left", "saving"):
        assert text in shown.err


def test_a_transfer_shows_bytes_and_the_time_left() -> None:
    half = Transfer(bytes_done=5_000_000, bytes_total=20_000_000, elapsed_sec=10.0, eta_sec=30.0)
    assert event_line(half) == "5.0 MB of 20.0 MB, 30s left"
    whole = Transfer(bytes_done=20_000_000, bytes_total=20_000_000, elapsed_sec=40.0, eta_sec=0.0)
    assert event_line(whole) == "20.0 MB of 20.0 MB"
