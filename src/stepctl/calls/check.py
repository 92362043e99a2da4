"""Judging a trace as ``train`` would, and nothing else: nothing is changed, nothing is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stepctl.base.errors import StepctlError, TraceRefused, UsageError
from stepctl.calls.origin import find_origin
from stepctl.calls.prepare import bad_lines, inherit_from, read_state
from stepctl.calls.request import STDIN, read_name, read_source, require_once
from stepctl.calls.start import method_warnings, steps_of
from stepctl.calls.world import World
from stepctl.config.load import Loaded
from stepctl.config.model import Settings
from stepctl.models.resolve import resolve_model
from stepctl.traces.judge import survey
from stepctl.traces.one import Shown, show_row
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import FileSource, Judgement, RowWarning, TraceSource
from stepctl.traces.rules import Rules

MOST = 1000
"""Warnings of single rows that are kept of each kind."""


@dataclass(frozen=True)
class Checked:
    """What a call with these settings would train. ``step_sec`` is what a step took in earlier runs, if any tell."""

    settings: Settings
    judged: Judgement
    warnings: list[RowWarning]
    template: str
    step_sec: float | None

    @property
    def refused(self) -> bool:
        """Whether ``train`` would refuse the trace."""
        return bool(self.judged.refusals)

    @property
    def steps(self) -> int:
        """Optimizer steps of the call; none when it is refused."""
        return 0 if self.refused else steps_of(self.judged.kept, self.settings.train.grad_accum)

    @property
    def forecast_sec(self) -> float | None:
        """Seconds that the steps will take, by earlier runs."""
        return None if self.step_sec is None or not self.steps else round(self.step_sec * self.steps, 1)


def check(world: World, sources: Sequence[TraceSource]) -> Checked:
    """Judge a trace with the settings that ``train`` would have now.

    Raises:
        UsageError, StepctlError: no such model, or the settings contradict each other.
    """
    settings = _effective(world)
    tokenizer = _tokenizer(world.loaded, settings)
    judged = survey(sources, Rules.of(settings.method, settings.train), tokenizer, most=MOST)
    more = method_warnings(settings.method, judged.kept, settings.train.grad_accum) if judged.kept else []
    return Checked(
        settings=settings,
        judged=judged,
        warnings=[*judged.warnings, *judged.single, *(RowWarning(**each) for each in more)],
        template=tokenizer.origin,
        step_sec=_step_sec(world, settings),
    )


def show(world: World, source: TraceSource, line: int) -> Shown:
    """One row as the model will see it.

    Args:
        source: the file.
        line: as judgements tell it: the physical line, or the element's number.

    Raises:
        TraceRefused: the row is bad, or would be left out.
        UsageError: there is no such row; and as :func:`check`.
    """
    settings = _effective(world)
    tokenizer = _tokenizer(world.loaded, settings)
    shown = show_row(source, line, Rules.of(settings.method, settings.train), tokenizer)
    if isinstance(shown, Shown):
        return shown
    if isinstance(shown, str):
        raise UsageError(shown, next="stepctl trace check FILE lists the rows and what is wrong with them")
    raise TraceRefused(
        "\n".join(["the row cannot be trained, so there is nothing to show", *bad_lines(shown)]),
        next="mend it; stepctl trace check FILE judges all rows",
        details={"bad": [msgspec.to_builtins(row) for row in shown]},
    )


def open_sources(names: Sequence[str], stdin: TraceSource | None) -> list[TraceSource]:
    """The files of a trace, to be read piece by piece.

    Raises:
        UsageError: one is missing, a folder, unreadable, or named twice.
    """
    require_once(names)
    found: list[TraceSource] = []
    for name in names:
        if name == STDIN and stdin is not None:
            found.append(stdin)
        else:
            found.append(_open_source(name))
    return found


def _open_source(name: str) -> TraceSource:
    path = Path(name)
    with read_name(name):
        if path.exists() and not path.is_file() and not path.is_dir():
            return read_source(name)  # a pipe has its bytes once
        path.open("rb").close()
    return FileSource(name=name, path=path)


def _effective(world: World) -> Settings:
    """The settings with what the lineage's head brings, if it can be read; nothing depends on it here."""
    loaded = world.loaded
    try:
        head = read_state(world.bucket(new=True), loaded.settings.lineage, fresh=False).head
    except (StepctlError, OSError) as error:
        said = error.message if isinstance(error, StepctlError) else str(error)
        world.listener.notice(f"warning: the lineage cannot be read, so its settings are not taken over: {said}")
        head = None
    origin = None
    if loaded.settings.init_from is not None:
        origin = find_origin(loaded.settings.init_from, world.bucket(new=True), loaded.project)
    return inherit_from(loaded, head, origin)


def _tokenizer(loaded: Loaded, settings: Settings) -> TextTokenizer:
    return load_tokenizer(resolve_model(settings.model, settings.revision, loaded.hf_token).folder)


def _step_sec(world: World, settings: Settings) -> float | None:
    from stepctl.calls.spending import earlier

    return earlier(world, settings.target, settings.model, settings.method).step_sec
