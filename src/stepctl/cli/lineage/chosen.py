"""What ``rollback`` and ``use`` print."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepctl.cli.output import Output
from stepctl.cli.session import given_again

if TYPE_CHECKING:
    from stepctl.calls.choosing import Chosen
    from stepctl.calls.world import World


def finish(output: Output, world: World, chosen: Chosen) -> int:
    """Print it and return the exit code."""
    output.result(chosen, _lines(chosen, given_again(world)))
    return chosen.exit_code


def _lines(chosen: Chosen, again: str) -> Iterator[str]:
    if chosen.state == "unchanged":
        yield f"{chosen.head} at step {chosen.step} is the head of lineage {chosen.lineage} already: nothing changed"
        return
    yield f"the head of lineage {chosen.lineage} is now {chosen.head} at step {chosen.step}"
    if chosen.left is not None:
        yield f"it was {chosen.left} at step {chosen.left_step}"
    if chosen.left_problem is not None:
        yield f"what was wrong with it: {chosen.left_problem}"
    if chosen.left_behind:
        yield f"left behind, and kept: {', '.join(chosen.left_behind)}"
    if chosen.keys_again:
        yield f"these keys are not in the head any more, so they train again: {', '.join(chosen.keys_again)}"
    if chosen.rows_done < chosen.rows_total:
        rows = f"{chosen.rows_done} of {chosen.rows_total} rows"
        yield f"its trace is unfinished ({rows}): --continue, or its --key, trains the rest"
    if chosen.left is not None and chosen.left_problem is None:
        yield f"to come back: stepctl lineage use {chosen.left}{again}"
