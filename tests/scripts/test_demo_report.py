"""The demo must fail when stepctl did not continue or did not learn."""

from __future__ import annotations

from typing import Any

import pytest
from scripts.demo_report import faults


def calls() -> list[dict[str, Any]]:
    losses = [5.0, 2.0, 1.0, 0.5]
    return [
        {
            "from_step": 6 * number,
            "steps_run": 6,
            "global_step": 6 * number + 6,
            "eval_loss_before": losses[number],
            "eval_loss": losses[number + 1],
        }
        for number in range(3)
    ]


def test_calls_that_go_on_and_learn_are_good() -> None:
    assert faults(calls()) == []


@pytest.mark.parametrize(
    ("call", "change", "said"),
    [
        (2, {"eval_loss": 1.0}, "call 3 did not make the held-out loss fall"),
        (2, {"eval_loss": float("nan")}, "call 3 did not make the held-out loss fall"),
        (1, {"from_step": 0, "global_step": 6}, "call 2 starts at step 0, not at 6"),
        (1, {"steps_run": 5}, "call 2 ended at step 12: not 5 after its start"),
        (1, {"eval_loss_before": 2.1}, "call 2 starts with another held-out loss than the call before ended with"),
    ],
)
def test_each_fault_is_said(call: int, change: dict[str, Any], said: str) -> None:
    made = calls()
    made[call].update(change)
    assert said in faults(made)
