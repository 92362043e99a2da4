"""A pod that one call leaves for the next one, with the real scripts on both sides."""

from __future__ import annotations

import pytest
from tests.doubles.project import rows
from tests.doubles.rented import Rented

pytestmark = pytest.mark.pods


def test_a_kept_pod_is_taken_by_the_next_call_and_ended_by_it(rented: Rented) -> None:
    first = rented.train(rented.trace("a.jsonl", rows(4)), "--keep-pod", "30m")
    (kept,) = first["pods"]
    assert (kept["state"], first["pod_alive"], first["state"]) == ("kept", False, "done")
    keyed = rented.train(rented.trace("b.jsonl", rows(4, 20)), "--key", "b")
    assert keyed["pods"][0]["pod"] != kept["pod"]  # others would look for b's pod by a mark that this one has not
    second = rented.train(rented.trace("c.jsonl", rows(4, 40)))
    (taken,) = second["pods"]
    assert (taken["pod"], taken["state"], taken["ended_by"]) == (kept["pod"], "gone", "client")
    assert taken["deadline_at"] == kept["deadline_at"]
    assert [each["state"] for each in rented.attempts(rented.runs()[0])] == ["handed"]
    assert len(rented.sandbox.events("created")) == 2
    rented.clean("client", "client")


def test_a_kept_pod_that_nobody_takes_ends_itself(rented: Rented) -> None:
    first = rented.train(rented.trace("a.jsonl", rows(4)), "--keep-pod", "2s")
    (kept,) = first["pods"]
    rented.sandbox.wait_event("ended", kept["pod"])
    rented.verb("pod", "ls")
    (gone,) = rented.attempts()
    assert (gone["state"], gone["ended_by"]) == ("gone", "pod")
    assert rented.record()["report"]["pods"] == [gone]
    rented.clean("pod")
