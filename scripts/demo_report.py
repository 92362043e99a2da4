"""Print a table of several calls' ``train --json`` objects; fail unless each went on and made the held-out loss fall.

Usage: python scripts/demo_report.py CALL.json...
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

# The end of one call and the start of the next score the same adapter on the same rows.
SAME_LOSS = 1e-3


def faults(calls: list[dict[str, Any]]) -> list[str]:
    """What is not as it should be, one sentence each."""
    found = []
    for number, call in enumerate(calls, start=1):
        if call["global_step"] != call["from_step"] + call["steps_run"]:
            found.append(f"call {number} ended at step {call['global_step']}: not {call['steps_run']} after its start")
        if not call["eval_loss"] < call["eval_loss_before"]:
            found.append(f"call {number} did not make the held-out loss fall")
    for number, (last, call) in enumerate(itertools.pairwise(calls), start=2):
        if call["from_step"] != last["global_step"]:
            found.append(f"call {number} starts at step {call['from_step']}, not at {last['global_step']}")
        if abs(call["eval_loss_before"] - last["eval_loss"]) > SAME_LOSS * last["eval_loss"]:
            found.append(f"call {number} starts with another held-out loss than the call before ended with")
    return found


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    calls = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    print(f"{'call':<6}{'steps':<12}{'train loss':<20}{'held-out loss':<20}{'seconds':>7}")
    for number, call in enumerate(calls, start=1):
        steps = f"{call['from_step']} -> {call['global_step']}"
        train = f"{call['losses'][0]:.3f} -> {call['losses'][-1]:.3f}"
        held_out = f"{call['eval_loss_before']:.3f} -> {call['eval_loss']:.3f}"
        print(f"{number:<6}{steps:<12}{train:<20}{held_out:<20}{call['elapsed_sec']:>7.1f}")
    found = faults(calls)
    if found:
        sys.exit("the demo failed: " + "; ".join(found))


if __name__ == "__main__":
    main()
