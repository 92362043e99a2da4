"""What every command starts with: settings, a listener, and what Ctrl-C does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.calls.world import Interrupts, Listener, World


def open_world(output: Output, options: dict[str, object], listener: Listener | None = None) -> World:
    """Load the settings and say what they warn of.

    Raises:
        UsageError: the settings are not in order.
    """
    from stepctl.calls.world import Silent, World
    from stepctl.config.load import load_settings

    loaded = load_settings(options, os.environ, Path.cwd())
    for warning in loaded.warnings:
        output.warning(warning)
    return World(loaded, listener or Silent())


def given_again(world: World) -> str:
    """The options that a command to type next needs too, because this one had them: with a space in front, or empty."""
    import shlex

    settings, sources = world.loaded.settings, world.loaded.sources
    given = {"bucket": settings.bucket, "lineage": settings.lineage}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in given.items() if sources[name] == "option")


def catch_interrupts(interrupts: Interrupts) -> None:
    """Ctrl-C, TERM and a closed terminal (HUP) are counted once a run exists to answer them; before that the first one
    ends the call.

    What comes after that one must not cut short how the call ends: a machine may have to be let go.
    """

    def handle(*_: object) -> None:
        if not interrupts.armed:
            interrupts.armed = True
            raise KeyboardInterrupt
        interrupts.count += 1

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, handle)
