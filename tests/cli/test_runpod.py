"""Whole calls on rented pods, as a user makes them: what is trained, what it cost, and that nothing stays behind."""

from __future__ import annotations

import pytest
from tests.doubles.project import rows
from tests.doubles.rented import Rented

pytestmark = pytest.mark.pods

SENTINEL = "zqj-sentinel"


def test_calls_extend_the_lineage_here(rented: Rented) -> None:
    data = rows(8)
    data[0]["messages"][0]["content"] += f" {SENTINEL}"
    first = rented.train(rented.trace("a.jsonl", data), "--key", "a")
    assert (first["state"], first["global_step"], first["target"]) == ("done", 2, "cloud")
    assert (first["pod_alive"], first["ended_by"], len(first["pods"])) == (False, None, 1)
    (receipt,) = first["pods"]
    assert receipt == rented.attempts()[-1]
    assert (receipt["state"], receipt["ended_by"], receipt["reason"]) == ("gone", "client", "its work is done")
    assert 0 < first["cost_usd"] < 0.01
    second = rented.train(rented.trace("b.jsonl", rows(5, 20)))
    assert (second["from_step"], second["global_step"], second["resumed_from"]) == (2, 4, first["checkpoint"])
    assert rented.trained() == 13
    calls = len(rented.sandbox.calls())
    again = rented.train("a.jsonl", "--key", "a", env={"RUNPOD_API_KEY": ""})
    assert again["replayed"]
    assert len(rented.sandbox.calls()) == calls
    rented.clean("client", "client")
    kept = [path for path in (rented.path / "runs").rglob("*") if path.is_file()]
    assert not [path for path in kept if SENTINEL in path.read_text(errors="replace")]
    assert not [path for path in kept if rented.sandbox.key in path.read_text(errors="replace")]
    assert not list((rented.path / "runs").glob("*/stage")) + list((rented.path / "runs").glob("*/out/*"))
