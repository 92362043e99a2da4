"""Every way to be told to end counts alike: the first ends a call that has no run yet, the others are answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from stepctl.calls.world import Interrupts
from stepctl.cli.session import catch_interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("each", SIGNALS)
def test_the_first_ends_the_call_and_more_are_counted(each: signal.Signals) -> None:
    signal.signal(each, signal.SIG_DFL)  # also where the tests run under nohup
    interrupts = Interrupts()
    catch_interrupts(interrupts)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), each)
    os.kill(os.getpid(), each)
    assert (interrupts.armed, interrupts.count) == (True, 1)


def test_nohup_stays_in_force() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    catch_interrupts(Interrupts())
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
