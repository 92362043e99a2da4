"""The ``pod`` commands on a real pod that a call has kept, from first to last."""

from __future__ import annotations

import json

import pytest
from tests.doubles.project import rows
from tests.doubles.rented import Rented

pytestmark = pytest.mark.pods

ELSEWHERE = """\
Host *
  ProxyCommand false
  IdentityFile /nowhere
  User nobody
  RequestTTY force
  RemoteCommand false
"""


def test_a_kept_pod_is_looked_at_entered_and_ended(rented: Rented) -> None:
    first = rented.train(rented.trace("a.jsonl", rows(4)), "--keep-pod", "30m")
    (kept,) = first["pods"]
    (ours,) = rented.verb("pod", "ls")["pods"]
    assert (ours["pod"], ours["run"], ours["state"]) == (kept["pod"], first["run"], "kept")
    assert ours["price_per_hour"] == kept["price"] and 0 < ours["spent_usd"] < 0.05

    ssh = rented.path / "home/.ssh"
    ssh.mkdir()
    (ssh / "config").write_text(ELSEWHERE)
    shell = rented.run("pod", "ssh", "last", stdin="tr '\\0' '\\n' < /proc/1/environ; exit 7\n")
    assert shell.returncode == 7 and f"RUNPOD_POD_ID={kept['pod']}" in shell.stdout.split(), shell.stderr
    words = rented.verb("pod", "ssh", "last")["command"]
    assert words[0] == "ssh" and str(rented.runs()[-1] / "client_key") in words

    assert rented.run("pod", "logs", "last").stdout.strip()
    models = {each["gpu"]: each for each in rented.verb("pod", "gpus")["gpus"]}
    assert models[kept["gpu_type"]]["price_per_hour"] == kept["price"]

    assert rented.verb("pod", "reap")["ended"] == []  # it is within its time
    assert [each["pod"] for each in rented.verb("pod", "ls")["pods"]] == [kept["pod"]]
    rented.verb("pod", "rm", kept["pod"])
    assert rented.verb("pod", "ls")["pods"] == []
    gone = rented.run("pod", "ssh", "last", "--json")
    assert (gone.returncode, json.loads(gone.stdout)["error"]["code"]) == (2, "no_such_pod")
    assert rented.record()["report"]["pods"][0]["ended_by"] == "client"
    rented.clean("client")
