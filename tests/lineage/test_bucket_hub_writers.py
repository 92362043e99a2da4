"""Several machines at one lineage in a bucket of the Hub, as real processes: none loses anything, all agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.doubles.hub import Fault, Hub
from tests.lineage.hub_clients import Client, together
from tests.lineage.making import extend, make_next

from stepctl.base.errors import LineageConflict
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.ledger import by_key
from stepctl.lineage.store import LineageState, choose, commit, prune, read_lineage, verify

ROUNDS = 4


def test_two_machines_commit_children_of_one_head(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "start")
    state = read_lineage(bucket, "main")
    for number in range(ROUNDS):

        def write(who: str, number: int = number, state: LineageState = state) -> Callable[[], None]:
            made = make_next(work, state, f"{who}{number}")

            def act() -> None:
                done = commit(open_bucket(url, hub.write), *made)
                (tmp_path / f"{who}{number}").write_text(f"{done.forked} {done.head}")

            return act

        together([write("x"), write("y")], tmp_path / "homes")
        told = {who: (tmp_path / f"{who}{number}").read_text().split() for who in "xy"}
        state = read_lineage(open_bucket(url, hub.read), "main")
        winner = state.parent.split("-")[1]
        assert told[winner[0]] == ["False", state.parent]
        (loser,) = {"x", "y"} - {winner[0]}
        # Who lists before the other has stored sees itself first, and stays it.
        assert told[loser] == ["True", state.parent]
    report = verify(bucket, "main")
    assert (len(report.checkpoints), report.damages, report.incomplete, report.extra) == (2 * ROUNDS + 1, [], [], [])
    assert len(state.ledger) == ROUNDS + 1


def test_the_later_of_two_says_that_it_is_a_fork_whatever_the_order_of_their_ends(
    hub: Hub, url: str, work: Path, tmp_path: Path
) -> None:
    """One machine stops between storing its manifest and looking at what came of it; the other comes between."""
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "start")
    state = read_lineage(bucket, "main")
    slow, quick = make_next(work, state, "slow"), make_next(work, state, "quick")
    client = Client(
        lambda: (tmp_path / "said").write_text(str(commit(open_bucket(url, hub.write), *slow).forked)),
        tmp_path / "home",
    )
    hub.faults(Fault("POST .*/batch", nth=2, when="after", hang=True))
    client.go()
    hub.wait_held()
    assert commit(bucket, *quick).forked is True
    hub.release()
    assert client.end() == 0
    assert (tmp_path / "said").read_text() == "False"
    assert read_lineage(open_bucket(url, hub.read), "main").parent == "00000002-slow"


def test_the_same_checkpoint_from_two_machines(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    """A pod and its client may both commit one run."""
    bucket = open_bucket(url, hub.write, new=True)
    extend(bucket, work, "start")
    made = make_next(work, read_lineage(bucket, "main"), "run", key="k")
    together([lambda: commit(open_bucket(url, hub.write), *made)] * 3, tmp_path / "homes")
    state = read_lineage(bucket, "main")
    assert (state.parent, len(state.checkpoints)) == ("00000002-run", 2)
    assert by_key(state.ledger, "k") is not None
    assert verify(bucket, "main").damages == []


def test_two_choices_at_once_are_both_kept_and_all_agree(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for run in ("a", "b", "c"):
        extend(bucket, work, run)
    for number in range(1, ROUNDS):

        def use(name: str) -> Callable[[], object]:
            return lambda: choose(open_bucket(url, hub.write), "main", name, "use")

        together([use("00000001-a"), use("00000002-b")], tmp_path / "homes")
        heads = [read_lineage(open_bucket(url, token), "main").parent for token in (hub.read, hub.write)]
        assert heads[0] == heads[1]
        assert heads[0] in ("00000001-a", "00000002-b")
        choose(bucket, "main", "00000003-c", "use")
        stored = [path for path in hub.stored("/".join(url.split("/")[3:5])) if "/choices/" in path]
        assert len(stored) == 3 * number
    assert verify(bucket, "main").damages == []
    assert extend(bucket, work, "d").head == "00000004-d"


def test_a_choice_overwrites_none_that_it_did_not_see(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for run in ("a", "b", "c"):
        extend(bucket, work, run)
    client = Client(lambda: choose(open_bucket(url, hub.write), "main", "00000001-a", "use"), tmp_path / "home")
    hub.faults(Fault("POST .*/batch", nth=1, hang=True))
    client.go()
    hub.wait_held()
    choose(bucket, "main", "00000002-b", "use")
    hub.release()
    assert client.end() == 0
    assert len([path for path in hub.stored("/".join(url.split("/")[3:5])) if "/choices/" in path]) == 2
    assert read_lineage(open_bucket(url, hub.read), "main").parent == "00000001-a"  # stored last


def test_a_machine_prunes_while_another_commits(hub: Hub, url: str, work: Path, tmp_path: Path) -> None:
    bucket = open_bucket(url, hub.write, new=True)
    for n in range(4):
        extend(bucket, work, f"run{n}")
    made = make_next(work, read_lineage(bucket, "main"), "new")
    together(
        [
            lambda: commit(open_bucket(url, hub.write), *made),
            lambda: prune(open_bucket(url, hub.write), "main", 1),
            lambda: prune(open_bucket(url, hub.write), "main", 1),
        ],
        tmp_path / "homes",
    )
    state = read_lineage(bucket, "main")
    assert state.parent == "00000005-new"
    assert len(state.ledger) == 5
    report = verify(bucket, "main")
    assert (report.damages, report.incomplete) == ([], [])


def test_one_machine_has_one_writer_at_a_time(hub: Hub, url: str) -> None:
    bucket, other = open_bucket(url, hub.write), open_bucket(url, hub.write)
    with bucket.lock("main"):
        with (
            pytest.raises(LineageConflict, match=r"lineage main in hf://buckets/.* is in use by process"),
            other.lock("main", wait_sec=0),
        ):
            pass
        with other.lock("second", wait_sec=0), open_bucket(url + "2", hub.write).lock("main", wait_sec=0):
            pass
