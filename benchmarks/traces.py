"""Time the judging of chat rows against the tokenizer alone over the same texts, in the same run.

Usage: python benchmarks/traces.py --model FOLDER [--rows 100000] [--out FILE]

Fails (exit 1) when the rows take more than 60 seconds for each 100,000, or when memory grows with their number.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BATCH = 256
WORDS = (ROOT / "README.md").read_text().split()
SEC_PER_100K = 60.0
GROWTH_MB = 48
"""What ten times as many rows may take more: hashes of rows and of prompts are held, to tell what repeats."""


def chats(count: int) -> Iterator[dict[str, Any]]:
    """Chats of two to six turns, of about 500 characters."""
    chance = random.Random(0)
    for number in range(count):
        messages = []
        for turn in range(2 * chance.randint(1, 3)):
            text = " ".join(chance.choices(WORDS, k=chance.randint(5, 35)))
            messages.append({"role": ("user", "assistant")[turn % 2], "content": f"{number}: {text}"})
        yield {"messages": messages}


def judged(path: Path, model: Path) -> dict[str, float]:
    """Seconds and the peak memory of one judgement, in a process of its own."""
    code = (
        "import sys, time, json, resource; from pathlib import Path\n"
        "from stepctl.traces.judge import survey; from stepctl.traces.rules import Rules\n"
        "from stepctl.traces.rows import FileSource; from stepctl.traces.render.tokenizer import load_tokenizer\n"
        "tokenizer = load_tokenizer(Path(sys.argv[2])); began, cpu = time.perf_counter(), time.process_time()\n"
        "found = survey([FileSource(name='t', path=Path(sys.argv[1]))], Rules(), tokenizer)\n"
        "assert not found.bad, found.bad[:3]\n"
        "print(json.dumps({'sec': time.perf_counter() - began, 'cpu_sec': time.process_time() - cpu,\n"
        "    'peak_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 'tokens': found.tokens}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(model)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def tokenized(path: Path, model: Path) -> float:
    """Seconds of the tokenizer alone, in batches as large, over the contents joined as a template would."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = []
    with path.open() as lines:
        for line in lines:
            parts = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in json.loads(line)["messages"])
            texts.append("".join(parts))
    began = time.perf_counter()
    for start in range(0, len(texts), BATCH):
        tokenizer.encode_batch(texts[start : start + BATCH], add_special_tokens=False)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepctl-bench-") as folder:
        many, few = Path(folder, "many.jsonl"), Path(folder, "few.jsonl")
        for path, count in ((many, args.rows), (few, args.rows // 10)):
            with path.open("w") as file:
                file.writelines(json.dumps(row) + "\n" for row in chats(count))
        small, large, alone = judged(few, args.model), judged(many, args.model), tokenized(many, args.model)
    found = {
        "rows": args.rows,
        "sec": large["sec"],
        "cpu_sec": large["cpu_sec"],
        "tokens": large["tokens"],
        "tokenizer_sec": alone,
        "ratio": large["sec"] / alone,
        "peak_mb": large["peak_mb"],
        "growth_mb": large["peak_mb"] - small["peak_mb"],
    }
    print(
        f"{args.rows:,} chat rows, {large['tokens']:,} tokens: {large['sec']:.1f} s ({large['cpu_sec']:.1f} s of CPU)"
    )
    print(f"{found['ratio']:.2f} times the tokenizer alone ({alone:.1f} s)")
    print(f"{large['peak_mb']:.0f} MB at most, {found['growth_mb']:.0f} MB more than for a tenth of the rows")
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if large["sec"] > SEC_PER_100K * args.rows / 100_000 or found["growth_mb"] > GROWTH_MB:
        sys.exit("judging takes too long, or memory grows with the rows")


if __name__ == "__main__":
    main()
