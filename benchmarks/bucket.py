"""Time and count what a storage bucket of the Hub costs, against plain calls of the Hub's client in the same run.

Usage: python benchmarks/bucket.py [--megabytes 200] [--rounds 5] [--out FILE]

The Hub is the emulated one of the tests, on this machine: the ratio says what is added to the client's own work, the
seconds say nothing of a real connection. Fails (exit 1) when a transfer takes more than 1.15 times as long as the
client's, or when a second commit sends more than 1.05 times the bytes of its adapter and optimizer.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
SLOWER, LARGER = 1.15, 1.05
ADAPTER, OPTIMIZER = 3_700_000, 7_600_000
"""Bytes of an adapter of rank 8 of a model of 135M weights, and of its optimizer."""


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def ours(bucket: str, source: Path, target: Path) -> dict[str, float]:
    """Store and fetch one file as a commit and a resume do: hashed, compared, verified, durable."""
    from stepctl.base.files import sha256_file
    from stepctl.lineage.buckets import open_bucket
    from stepctl.lineage.records import FileEntry

    up = open_bucket(f"hf://buckets/{bucket}/pre", os.environ["HF_TOKEN"], new=True)
    up.check_writable()
    down = open_bucket(f"hf://buckets/{bucket}/pre", os.environ["HF_TOKEN"])
    entry = FileEntry(path=source.name, size=source.stat().st_size, sha256=sha256_file(source))
    found = {"up": timed(lambda: up.put_files("main/checkpoints/1", source.parent, [entry]))}
    os.environ["XDG_CACHE_HOME"] = str(target / "empty")
    found["down"] = timed(lambda: down.fetch("main/checkpoints/1", [source.name], target))
    if sha256_file(target / source.name) != entry.sha256:
        raise SystemExit("what came back is something else")
    return found


def plain(bucket: str, source: Path, target: Path) -> dict[str, float]:
    """The same with the client alone: nothing is compared."""
    from huggingface_hub import HfApi

    api = HfApi(token=os.environ["HF_TOKEN"])
    api.create_bucket(bucket, private=True)
    return {
        "up": timed(lambda: api.batch_bucket_files(bucket, add=[(str(source), "file")])),
        "down": timed(lambda: api.download_bucket_files(bucket, [("file", str(target / "file"))])),
    }


def transfer(hub: Any, side: str, number: int, megabytes: int, folder: Path) -> dict[str, float]:
    """One transfer in a process and a HOME of its own, of bytes that nobody has sent before."""
    home = folder / f"{side}{number}"
    (home / "source").mkdir(parents=True)
    (home / "target").mkdir()
    with (home / "source/file").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1_000_000))
    env = {**os.environ, **hub.env(home, token=hub.write), "XDG_CACHE_HOME": str(home / "cache")}
    command = [sys.executable, __file__, "--side", side, "--bucket", f"u/{side}{number}", "--folder", str(home)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def second_commit(hub: Any, folder: Path) -> dict[str, int]:
    """Bytes that two commits send, with new weights and moments in the second."""
    env = {**os.environ, **hub.env(folder / "home", token=hub.write), "XDG_CACHE_HOME": str(folder / "cache")}
    sent = []
    for step in (1, 2):
        hub.clear_requests()
        command = [sys.executable, __file__, "--side", "commit", "--bucket", "u/commits", "--folder", str(folder)]
        subprocess.run([*command, "--step", str(step)], env=env, check=True)
        sent.append(hub.up(""))
    return {"first": sent[0], "second": sent[1], "adapter_and_optimizer": ADAPTER + OPTIMIZER}


def commit(bucket: str, folder: Path, step: int) -> None:
    """One checkpoint of random bytes on the head."""
    import msgspec
    from tests.lineage.making import make_next

    from stepctl.lineage.buckets import open_bucket
    from stepctl.lineage.store import commit as store
    from stepctl.lineage.store import entries_of, read_lineage

    to = open_bucket(f"hf://buckets/{bucket}", os.environ["HF_TOKEN"], new=True)
    to.check_writable()
    made, manifest = make_next(folder, read_lineage(to, "main"), f"run{step}")
    (made / "adapter_model.safetensors").write_bytes(os.urandom(ADAPTER))
    (made / "optimizer.safetensors").write_bytes(os.urandom(OPTIMIZER))
    store(to, made, msgspec.structs.replace(manifest, files=entries_of(made)))


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from tests.doubles.hub import Hub

    with Hub(folder / "hub") as hub:
        sides: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
        for number in range(args.rounds):
            for side, runs in sides.items():
                runs.append(transfer(hub, side, number, args.megabytes, folder))
        commits = second_commit(hub, folder)
    median = {
        side: {way: statistics.median(run[way] for run in runs) for way in ("up", "down")}
        for side, runs in sides.items()
    }
    ratio = {way: median["ours"][way] / median["plain"][way] for way in ("up", "down")}
    return {"megabytes": args.megabytes, "rounds": args.rounds, "sec": median, "ratio": ratio, "commit_bytes": commits}


def show(found: dict[str, Any]) -> None:
    print(f"{found['megabytes']} MB, median of {found['rounds']} rounds, seconds")
    print(f"{'':<6}{'stepctl':>9}{'client':>9}{'ratio':>8}")
    for way in ("up", "down"):
        mine, theirs = found["sec"]["ours"][way], found["sec"]["plain"][way]
        print(f"{way:<6}{mine:>9.2f}{theirs:>9.2f}{found['ratio'][way]:>8.2f}")
    sent = found["commit_bytes"]
    print(f"bytes of a second commit: {sent['second']:,} (adapter and optimizer: {sent['adapter_and_optimizer']:,})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=("ours", "plain", "commit"), help=argparse.SUPPRESS)
    for name in ("--bucket", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side == "commit":
        return commit(args.bucket, Path(args.folder), args.step)
    if args.side:
        act = ours if args.side == "ours" else plain
        print(json.dumps(act(args.bucket, Path(args.folder, "source/file"), Path(args.folder, "target"))))
        return None
    with tempfile.TemporaryDirectory(prefix="stepctl-bench-") as folder:
        found = measure(args, Path(folder))
    show(found)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    if max(found["ratio"].values()) > SLOWER:
        sys.exit(f"a transfer takes more than {SLOWER} times as long as the client's own")
    if found["commit_bytes"]["second"] > LARGER * found["commit_bytes"]["adapter_and_optimizer"]:
        sys.exit("a second commit sends more than its adapter and optimizer")
    return None


if __name__ == "__main__":
    main()
