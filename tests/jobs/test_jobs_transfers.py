"""From bytes to events: none for what is quick, one a second for what is not."""

from __future__ import annotations

from stepctl.jobs.events import AnyEvent, Transfer
from stepctl.jobs.transfers import Transfers


class Told:
    def __init__(self) -> None:
        self.now, self.events = 0.0, list[AnyEvent]()
        self.transfers = Transfers(self.events.append, lambda: self.now)

    def after(self, seconds: float, done: int, total: int = 100) -> list[AnyEvent]:
        self.now += seconds
        self.events.clear()
        self.transfers(done, total)
        return list(self.events)


def test_a_quick_transfer_is_not_spoken_of() -> None:
    told = Told()
    assert [event for n in range(10) for event in told.after(0.09, 10 * n)] == []


def test_a_slow_one_is_once_a_second() -> None:
    told = Told()
    told.after(5, 0)
    assert told.after(0.9, 10) == []
    (event,) = told.after(0.1, 20)
    assert isinstance(event, Transfer)
    assert (event.bytes_done, event.bytes_total) == (20, 100)
    assert (round(event.elapsed_sec, 6), round(event.eta_sec, 6)) == (1.0, 4.0)
    assert told.after(0.5, 30) == []
    assert told.after(0.5, 40) != []


def test_another_transfer_begins_anew() -> None:
    told = Told()
    told.after(0, 0)
    assert told.after(3, 100) != []
    assert told.after(60, 0, 50) == []
    (event,) = told.after(2, 10, 50)
    assert (event.elapsed_sec, event.eta_sec) == (2.0, 8.0)  # type: ignore[union-attr]
    assert told.after(60, 0, 50) == []  # the same size, from the start


def test_nothing_done_yet_has_no_eta() -> None:
    told = Told()
    told.after(0, 0)
    (event,) = told.after(10, 0)
    assert event.eta_sec == 0.0  # type: ignore[union-attr]
    assert told.after(10, 0, 0) == []  # an empty transfer


def test_a_long_one_fills_no_log() -> None:
    told = Told()
    told.after(0, 0)
    said = sum(len(told.after(0.5, n, 7200)) for n in range(1, 7201))  # an hour
    assert 60 < said < 150
