"""The provider refuses a call, for good or for a while, at each phase of a run: what is told, and that the next command
brings everything to its end."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.doubles.project import rows
from tests.doubles.rented import Rented
from tests.doubles.runpod import Fault
from tests.matrix.points import CATALOG, CREATE, DELETE, DELETE_SECRET, POD, PODS, SECRETS

pytestmark = pytest.mark.pods

PHASES = {
    "list": Fault(PODS),
    "catalog": Fault(CATALOG),
    "add-secret": Fault(r"^POST /v2/account/secrets$"),
    "create": Fault(CREATE),
    "boot": Fault(POD),
    "secrets": Fault(SECRETS),
    "limit": Fault(POD, since=DELETE_SECRET),
    "delete": Fault(DELETE),
    "gone": Fault(POD, since=DELETE),
    "gone-list": Fault(PODS, since=DELETE),
}
WORDS = {401: "the API key is not accepted", 402: "balance", 403: "403", 422: "422"}
BEFORE, AFTER = ("list", "catalog", "create"), ("boot", "limit", "gone", "gone-list")
long = pytest.mark.long


def meets(rented: Rented, phase: str, status: int, times: int) -> None:
    pause = 1 if status == 429 else None
    rented.sandbox.fault(replace(PHASES[phase], status=status, times=times, who="account", retry_after=pause))


def train(rented: Rented, code: int) -> tuple[dict[str, object], str]:
    done = rented.run("train", "a.jsonl", "--key", "a", "--json")
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr and "this is a bug" not in done.stderr, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("status", [401, pytest.param(402, marks=long), pytest.param(422, marks=long)])
@pytest.mark.parametrize("phase", BEFORE)
def test_refused_before_there_is_a_pod(rented: Rented, phase: str, status: int) -> None:
    """Nothing was rented, and the words say what to mend."""
    rented.trace("a.jsonl", rows(4))
    meets(rented, phase, status, times=0)
    document, said = train(rented, 1)
    assert WORDS[status] in said and "next:" in said, said
    assert document["exit_code"] == 1
    assert rented.sandbox.pods() == [] and rented.sandbox.gone() == []
    rented.sandbox.clear()
    assert train(rented, 0)[0]["rows_done"] == 4
    assert rented.trained() == 4
    rented.clean("client")


@pytest.mark.long
@pytest.mark.parametrize("status", [401, 402, 503])
@pytest.mark.parametrize("phase", AFTER)
def test_refused_when_there_is_a_pod(rented: Rented, phase: str, status: int) -> None:
    """Its end cannot be proved then: exit code 8 says so until a command proves it."""
    rented.trace("a.jsonl", rows(4))
    rented.set(boot_grace_minutes=0.1)
    meets(rented, phase, status, times=0)
    _, said = train(rented, 8)
    assert "may still be alive" in said and "next: stepctl pod rm" in said, said
    rented.sandbox.clear()
    rented.set(boot_grace_minutes=30)
    rented.verb("pod", "rm", "last")
    report, _ = train(rented, 0)
    assert (report["rows_done"], report["pod_alive"]) == (4, False)
    assert rented.trained() == 4
    assert rented.sandbox.pods() == []
    assert rented.sandbox.secrets() == {}


@pytest.mark.parametrize("phase", ["secrets", "add-secret", "delete"])
@pytest.mark.long
@pytest.mark.parametrize("status", [402, 403])
def test_refused_where_there_is_another_way(rented: Rented, phase: str, status: int) -> None:
    """Host keys come from the log, pods end by another call, and the next call sweeps a secret that was left."""
    rented.trace("a.jsonl", rows(4))
    meets(rented, phase, status, times=0)
    report, _ = train(rented, 0)
    assert (report["rows_done"], report["pod_alive"]) == (4, False)
    assert rented.sandbox.pods() == []
    rented.sandbox.clear()
    rented.trace("b.jsonl", rows(4, 10))
    assert rented.train("b.jsonl")["global_step"] == 2
    rented.clean("client", "client")


WHILE = [
    pytest.param(phase, status, marks=() if (phase, status) == ("boot", 503) else long)
    for phase in PHASES
    for status in (429, 503)
    if (phase, status) != ("create", 503)  # no answer to a create, which is never repeated for long
]


@pytest.mark.parametrize(("phase", "status"), WHILE)
def test_refused_for_a_while(rented: Rented, phase: str, status: int) -> None:
    """It is waited for, and the run goes on as if nothing had been."""
    rented.trace("a.jsonl", rows(4))
    meets(rented, phase, status, times=2)
    report, _ = train(rented, 0)
    assert (report["rows_done"], report["pod_alive"]) == (4, False)
    assert rented.trained() == 4
    rented.clean(*["client"] * len(rented.sandbox.gone()))
