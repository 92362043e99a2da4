"""Time a cold ``stepctl train`` against the plain loop of ``floor.py``: the same rows, settings, threads and machine.

Usage: python benchmarks/cold_call.py --model FOLDER [--rounds 3] [--threads N] [--out FILE]

Needs ``stepctl`` on the PATH. Both sides train 10 rows (about 1,290 tokens) with G = 4, so 3 optimizer steps, from the
same adapter, in turn for a number of rounds; medians are compared. Fails (exit 1) when the losses of any round differ
by more than 2e-4: then the two did not do the same work, and the times say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
GRAD_ACCUM = 4
LEARNING_RATE = 1e-4
TOLERANCE = 2e-4
# Answers of the examples that are joined into each row: lengths from 57 to 196 tokens, in no order.
ANSWERS = (5, 2, 7, 3, 6, 1, 8, 4, 6, 7)
PHASES = ("imports", "model", "data", "steps", "save", "other")
PROJECT = f"[train]\nlearning_rate = {LEARNING_RATE}\ngrad_accum = {GRAD_ACCUM}\n"


def trace() -> str:
    """Ten rows made of the examples: a question, and an answer of several sentences."""
    lines = (EXAMPLES / "day1.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line)["messages"] for line in lines]
    rows = []
    for first, count in enumerate(ANSWERS):
        chosen = [pairs[(first + offset) % len(pairs)] for offset in range(count)]
        answer = " ".join(messages[1]["content"] for messages in chosen)
        rows.append({"messages": [chosen[0][0], {"role": "assistant", "content": answer}]})
    return "".join(json.dumps(row) + "\n" for row in rows)


def environment(threads: int) -> dict[str, str]:
    """This process's environment, without settings of its user, with a thread count."""
    names = ("MODEL_ID", "BUCKET_ID", "LEARNING_RATE", "MAX_LENGTH", "GRAD_ACCUM")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STEPCTL_", "LORA_")) and k not in names}
    return {**kept, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


def call(command: list[str], cwd: Path, threads: int) -> tuple[dict[str, Any], float]:
    """Run a command that prints one JSON object.

    Returns:
        The object, and the seconds from start to end of the process.

    Raises:
        SystemExit: it failed; what it said is printed.
    """
    start = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environment(threads), capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout), wall


def train(folder: Path, rows: Path, model: Path, threads: int) -> tuple[dict[str, Any], float]:
    """One cold call of stepctl in a new project."""
    folder.mkdir()
    (folder / "stepctl.toml").write_text(PROJECT)
    command = ["stepctl", "train", str(rows), "--model", str(model), "--target", "local", "--cold", "--json"]
    return call(command, folder, threads)


def start_adapter(folder: Path, text: str, model: Path, threads: int) -> Path:
    """The adapter that stepctl starts from, so that the floor can start from it too.

    One step of one row is enough to see it: B starts at zero, so A has no gradient in the first step and stays as it
    was made. The call also brings the model's file into the page cache for both sides.
    """
    rows = folder / "one.jsonl"
    rows.write_text(text.splitlines()[0] + "\n")
    train(folder / "start", rows, model, threads)
    return next((folder / "start").glob("checkpoints/**/adapter_model.safetensors"))


def split(result: dict[str, Any], wall: float) -> dict[str, float]:
    """Seconds by phase; ``other`` is what no phase covers: starting, judging, the run's record, ending."""
    spent = {**result["timings_sec"]}
    phases = {name: spent.get(name, 0.0) for name in PHASES[:-1]}
    phases["save"] += spent.get("commit", 0.0)
    return {**phases, "other": wall - sum(phases.values()), "total": wall}


def differences(ours: list[float], floors: list[float]) -> list[float]:
    """Relative difference of each step's loss."""
    return [abs(a - b) / abs(b) for a, b in zip(ours, floors, strict=True)]


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All rounds, in turn, so that a slow spell of the machine meets both sides."""
    rows, tokens = folder / "rows.jsonl", folder / "rows.json"
    rows.write_text(trace())
    floor = [sys.executable, str(HERE / "floor.py")]
    tokenize = [*floor, "tokenize", "--model", str(args.model), "--trace", str(rows), "--out", str(tokens)]
    subprocess.run(tokenize, check=True, env=environment(args.threads))
    adapter = start_adapter(folder, rows.read_text(), args.model, args.threads)
    plain = [*floor, "train", "--model", str(args.model), "--rows", str(tokens), "--adapter", str(adapter)]
    plain += ["--grad-accum", str(GRAD_ACCUM), "--learning-rate", str(LEARNING_RATE)]
    ours, floors, worst, facts = [], [], 0.0, {}
    for number in range(args.rounds):
        result, wall = train(folder / f"round{number}", rows, args.model, args.threads)
        ours.append(split(result, wall))
        facts, wall = call(plain, folder, args.threads)
        floors.append(split(facts, wall))
        if result["supervised_tokens"] != facts["supervised_tokens"] or result["device"] != "cpu":
            sys.exit(
                f"not the same work: {result['supervised_tokens']} supervised tokens on {result['device']}, {facts}"
            )
        worst = max(worst, *differences(result["losses"], facts["losses"]))
        print(f"round {number + 1}: stepctl {ours[-1]['total']:.1f} s, floor {wall:.1f} s", file=sys.stderr)
    return {
        "rows": len(ANSWERS),
        "tokens": facts["tokens"],
        "supervised_tokens": facts["supervised_tokens"],
        "steps": len(facts["losses"]),
        "threads": facts["threads"],
        "rounds": args.rounds,
        "losses": facts["losses"],
        "largest_loss_difference": worst,
        "stepctl_sec": medians(ours),
        "floor_sec": medians(floors),
    }


def show(found: dict[str, Any]) -> None:
    ours, floors = found["stepctl_sec"], found["floor_sec"]
    print(
        f"{found['rows']} rows, {found['tokens']} tokens, {found['steps']} steps, {found['threads']} threads; "
        f"median of {found['rounds']} rounds, seconds"
    )
    print(f"{'phase':<10}{'stepctl':>9}{'floor':>9}{'ratio':>8}")
    for name in (*PHASES, "total"):
        ratio = f"{ours[name] / floors[name]:.2f}" if floors[name] >= 0.05 else "-"
        print(f"{name:<10}{ours[name]:>9.2f}{floors[name]:>9.2f}{ratio:>8}")
    print(f"largest relative difference of a step's loss: {found['largest_loss_difference']:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.model = args.model.resolve()
    with tempfile.TemporaryDirectory(prefix="stepctl-bench-") as folder:
        found = measure(args, Path(folder))
    show(found)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if found["largest_loss_difference"] > TOLERANCE:
        sys.exit(f"the losses differ by more than {TOLERANCE}: the two did not do the same work")


if __name__ == "__main__":
    main()
