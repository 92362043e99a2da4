"""Time from ``stepctl train`` to the end of the first step on an emulated pod, less its boot, against the call here.

Usage: python benchmarks/first_step.py --model FOLDER [--out FILE]

Needs root on Linux and ``make system`` (see docs/sandbox.md), and ``stepctl`` on the PATH. Calls, in this order: here;
on a fresh pod; on a second fresh pod, kept; on that kept pod. The boot is from the create until the SSH login works.
What is left is the same training as here, and what a pod costs besides: the plan, the installation, the base model's
way there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
TRACE = HERE.parent / "examples/day1.jsonl"


def call(folder: Path, env: dict[str, str], *options: str) -> dict[str, float]:
    """Seconds from the command to the first step's end, of which boot, of one call."""
    began = time.time()
    words = ["stepctl", "train", str(TRACE), "--json", "--yes", *options]
    done = subprocess.run(words, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    report = json.loads(done.stdout)
    run = folder / "runs" / report["run"]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    first = next(event["at"] for event in events if event["type"] == "progress")
    boot = 0.0
    if report["pods"]:
        pod = report["pods"][-1]
        boot = (datetime.fromisoformat(pod["ready_at"]) - datetime.fromisoformat(pod["asked_at"])).total_seconds()
    return {"to_first_step": first - began, "boot": boot, "without_boot": first - began - boot}


def measure(model: Path, folder: Path) -> dict[str, Any]:
    """All calls, and their ratios to the one here."""
    from tests.doubles.runpod import Sandbox

    (folder / "stepctl.toml").write_text(f'model = "{model.resolve()}"\n')
    with Sandbox(folder / "sandbox", pods="netns", python=True) as sandbox:
        env = sandbox.env()
        env.pop("STEPCTL_MODEL", None)
        found: dict[str, Any] = {
            "here": call(folder, {}, "--lineage", "here"),
            "first": call(folder, env, "--target", "sandbox"),
            "second": call(folder, env, "--target", "sandbox", "--keep-pod", "10m"),
            "kept": call(folder, env, "--target", "sandbox"),
        }
    base = found["here"]["without_boot"]
    found["ratios"] = {name: found[name]["without_boot"] / base for name in ("first", "second", "kept")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(args.model, Path(name))
    for each in ("here", "first", "second", "kept"):
        times = found[each]
        ratio = f", {found['ratios'][each]:.2f} times as long as here" if each in found["ratios"] else ""
        print(
            f"{each:<7} {times['without_boot']:6.1f} s to the first step, boot of {times['boot']:.1f} s left out{ratio}"
        )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
