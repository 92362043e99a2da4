"""kill -9 of a client at each of its requests to the Hub, before and after the request had its effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.hub import Fault, Hub
from tests.doubles.hub.faults import When
from tests.lineage.hub_clients import killed
from tests.lineage.making import extend, make_next

from stepctl.base.names import utc_now
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.store import choose, clean_leftovers, commit, prune, read_lineage, verify

WHEN: tuple[When, ...] = ("before", "after")
SOME = {"before": "/", "after": "POST "}
"""A request that only asks has no effect: before the next one is the same as after it."""
_MOST = 80


def _each_kill(
    hub: Hub, when: When, tmp_path: Path, prepare: Callable[[int], Callable[[], object]], match: str = "/"
) -> list[int]:
    """Kill at (matching) request 1, 2, 3... of an act that is prepared anew each time, until it comes to its end.

    Returns:
        The numbers of the requests at which it was killed.
    """
    deaths = []
    for nth in range(1, _MOST):
        act = prepare(nth)

        def fault(pid: int, nth: int = nth) -> Fault:
            return Fault(match, nth=nth, when=when, kill=pid)

        if not killed(hub, act, tmp_path / "client", fault):
            return deaths
        deaths.append(nth)
    raise AssertionError("it never completes")


@pytest.mark.parametrize("when", WHEN)
def test_a_commit(hub: Hub, url: str, work: Path, tmp_path: Path, when: When) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "start")
    before, after = [], []

    def prepare(nth: int) -> Callable[[], object]:
        if nth > 1:
            check()
        made.append(make_next(work, read_lineage(bucket, "main"), f"run{nth}"))
        return lambda: commit(open_bucket(url, hub.write), *made[-1])

    def check() -> None:
        """Nothing is half there; repeating it, from another process, completes it; nothing else is left."""
        folder, manifest = made[-1]
        fresh = open_bucket(url, hub.write)
        assert verify(fresh, "main").damages == []
        state = read_lineage(fresh, "main")
        assert state.notes == []
        (before if state.parent == manifest.parent else after).append(len(made))
        assert state.parent in (manifest.parent, manifest.checkpoint)
        done = commit(fresh, folder, manifest)
        assert (done.head, done.forked) == (manifest.checkpoint, False)
        prune(fresh, "main", 1)
        state = read_lineage(fresh, "main")
        assert [line.run for line in state.ledger] == ["start", *(f"run{n + 1}" for n in range(len(made)))]
        assert [path.split("/")[3] for path in hub.stored("/".join(url.split("/")[3:5]))] == [state.parent] * 4

    made: list[tuple[Path, object]] = []
    deaths = _each_kill(hub, when, tmp_path, prepare)
    assert len(deaths) > 20
    check()
    assert verify(bucket, "main").damages == []
    # There is one moment at which the new one becomes the head, and later kills leave it the head.
    assert before
    assert after
    assert before[-1] < after[0]


@pytest.mark.parametrize("when", WHEN)
def test_the_first_commit_of_all(hub: Hub, url: str, work: Path, tmp_path: Path, when: When) -> None:
    """The bucket itself is made on the way. Some requests stand for all: the others are those of any commit."""
    for number, match in enumerate(("GET /api/buckets/u/[^/]+$", "POST /api/buckets/u/[^/]+$", "POST .*/batch")):
        place = f"{url.removesuffix('/pre')}-{number}"
        made = make_next(work / str(number), read_lineage(open_bucket(place, hub.write, new=True), "main"), "a")

        def act(place: str = place, made: tuple[Path, object] = made) -> None:
            commit(open_bucket(place, hub.write, new=True), *made)  # type: ignore[arg-type]

        assert killed(hub, act, tmp_path / "client", lambda pid, m=match: Fault(m, nth=1, when=when, kill=pid))  # type: ignore[misc]
        act()
        report = verify(open_bucket(place, hub.write), "main")
        assert (report.checkpoints, report.damages, report.incomplete) == (["00000001-a"], [], [])


@pytest.mark.parametrize("when", WHEN)
def test_a_prune_and_cleaning_up(hub: Hub, url: str, work: Path, tmp_path: Path, when: When) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for n in range(3):
        extend(bucket, work, f"run{n}")
    runs = [f"run{n}" for n in range(3)]

    def act() -> None:
        fresh = open_bucket(url, hub.write)
        prune(fresh, "main", 1)
        clean_leftovers(fresh, "main", runs[-1], utc_now())

    def check() -> None:
        state = read_lineage(open_bucket(url, hub.write), "main")
        assert (state.parent.split("-")[1], state.notes) == (runs[-1], [])
        act()
        state = read_lineage(open_bucket(url, hub.write), "main")
        assert [line.run for line in state.ledger] == runs
        assert [path.split("/")[3] for path in hub.stored("/".join(url.split("/")[3:5]))] == [state.parent] * 4

    def prepare(nth: int) -> Callable[[], object]:
        if nth > 1:
            check()
            runs.append(f"more{nth}")
            extend(bucket, work, runs[-1])
        return act

    assert len(_each_kill(hub, when, tmp_path, prepare, SOME[when])) > (8 if when == "before" else 2)
    check()
    assert verify(bucket, "main").damages == []


@pytest.mark.parametrize("when", WHEN)
def test_a_choice(hub: Hub, url: str, work: Path, tmp_path: Path, when: When) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for run in ("a", "b"):
        extend(bucket, work, run)
    heads = ["00000001-a", "00000002-b"]

    def prepare(nth: int) -> Callable[[], object]:
        if nth > 1:
            check()
        return lambda: choose(open_bucket(url, hub.write), "main", heads[0], "use")

    def check() -> None:
        """The head is the old or the new one; the same choice again makes it the new one."""
        fresh = open_bucket(url, hub.write)
        assert read_lineage(fresh, "main").parent in heads
        choose(fresh, "main", heads[0], "use")
        assert read_lineage(fresh, "main").parent == heads[0]
        heads.reverse()

    assert len(_each_kill(hub, when, tmp_path, prepare, SOME[when])) > (8 if when == "before" else 2)
    check()
    assert verify(bucket, "main").damages == []
