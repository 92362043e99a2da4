"""Time files to a machine and back, against `scp -r` and `tar | ssh tar` in the same run.

Usage: python benchmarks/transfer.py [--megabytes 200] [--files 2000] [--rounds 9] [--out FILE]

The machine is a real sshd on this one, so that the ratio says what is added to SSH itself; the seconds say nothing of a
real network. Each side connects anew, which counts; what the others do not do counts too: stepctl compares digests and
makes what arrived durable. Starting Python here does not count, starting it there does. The three are timed in a new
random order each round, since each leaves the disk another state; a ratio is the median of the rounds' ratios, since a
shared machine's speed drifts. Fails (exit 1) when a transfer takes more than 1.1 times as long as either of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
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
SLOWER = 1.1
SIDES = ("stepctl", "scp", "tar")
SMALL = 4_000
"""Bytes of a small file."""


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Rig:
    """One sshd, the folders that travel, and each way to send them."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        from tests.doubles.sshd import Sshd

        from stepctl.targets.ssh.connect import connect
        from stepctl.targets.ssh.install import Where, prepare
        from stepctl.targets.ssh.route import Endpoint

        self.folder, self.sshd = folder, Sshd(folder / "sshd")
        self.endpoint = Endpoint("127.0.0.1", self.sshd.port, None, str(self.sshd.key), str(self.sshd.known_hosts))
        connection = connect(self.endpoint)
        where = Where(workdir=str(folder / "there"), python=sys.executable)
        self.place = prepare(connection, where, "bench", lambda _: None)
        connection.close()
        known = f"UserKnownHostsFile={self.sshd.known_hosts}"
        # The cipher that stepctl asks for is the others' as well.
        self.options = ["-i", str(self.sshd.key), "-o", known, "-o", "BatchMode=yes", "-c", "aes128-gcm@openssh.com"]
        self.sources = {f"{args.megabytes} MB in 1 file": folder / "one", f"{args.files} small files": folder / "many"}
        one, many = self.sources.values()
        one.mkdir()
        with (one / "file").open("wb") as file:
            for _ in range(args.megabytes):
                file.write(os.urandom(1_000_000))
        for i in range(args.files):
            path = many / f"d{i % 20}" / f"f{i}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SMALL))

    def ssh(self, command: str) -> str:
        return shlex.join(["ssh", "-p", str(self.sshd.port), *self.options, "127.0.0.1", command])

    def stepctl(self, way: str, source: Path, target: Path) -> None:
        from stepctl.base.archive import files_below
        from stepctl.targets.ssh.channel import command
        from stepctl.targets.ssh.connect import connect
        from stepctl.targets.ssh.transfer import download, upload

        connection = connect(self.endpoint)
        agent = ["sh", f"{self.place.job}/agent"]
        if way == "up":
            unpack = command([*agent, "unpack", str(self.folder)])
            upload(connection, unpack, str(target), files_below(source), digest="", keep=False, report=lambda *_: None)
        else:
            target.mkdir()
            download(connection, command([*agent, "pack", str(source), "."]), target, lambda *_: None)
        connection.close()

    def scp(self, way: str, source: Path, target: Path) -> None:
        ends = [str(source), f"127.0.0.1:{target}"] if way == "up" else [f"127.0.0.1:{source}", str(target)]
        subprocess.run(["scp", "-q", "-r", "-P", str(self.sshd.port), *self.options, *ends], check=True)

    def tar(self, way: str, source: Path, target: Path) -> None:
        here, there = f"tar -C {source} -cf - .", f"mkdir -p {target} && tar -C {target} -xf -"
        line = f"{here} | {self.ssh(there)}" if way == "up" else f"{self.ssh(here)} | ({there})"
        subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True)


def same(source: Path, target: Path) -> bool:
    """Whether all of it arrived."""
    done = subprocess.run(["diff", "-rq", str(source), str(target)], capture_output=True, check=False)
    return done.returncode == 0


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rig = Rig(folder, args)
    times: dict[tuple[str, str, str], list[float]] = {}
    order = random.Random(0)
    try:
        for number in range(args.rounds + 1):
            for what, source in rig.sources.items():
                for way in ("up", "down"):
                    for side in order.sample(SIDES, len(SIDES)):
                        target = folder / "arrived"
                        os.sync()
                        took = timed(lambda: getattr(rig, side)(way, source, target))  # noqa: B023 - called at once
                        if not same(source, target):
                            raise SystemExit(f"{side} {way}: what came is something else")
                        shutil.rmtree(target)
                        if number:  # the first round warms the caches
                            times.setdefault((what, way, side), []).append(took)
    finally:
        rig.sshd.stop()
    sec: dict[str, Any] = {}
    ratio: dict[str, Any] = {}
    for (what, way, side), runs in times.items():
        sec.setdefault(what, {}).setdefault(way, {})[side] = statistics.median(runs)
        if side != "stepctl":
            pairs = zip(times[what, way, "stepctl"], runs, strict=True)
            ratio.setdefault(what, {}).setdefault(way, {})[side] = statistics.median(a / b for a, b in pairs)
    return {"rounds": args.rounds, "sec": sec, "ratio": ratio}


def show(found: dict[str, Any]) -> None:
    print(f"median of {found['rounds']} rounds, seconds, and how many times as long stepctl takes")
    print(f"{'':<24}{'stepctl':>9}{'scp -r':>9}{'tar':>9}{'/ scp':>8}{'/ tar':>8}")
    for what, ways in found["sec"].items():
        for way, sec in ways.items():
            ratio = found["ratio"][what][way]
            print(f"{what:<18}{way:<6}" + "".join(f"{sec[side]:>9.2f}" for side in SIDES), end="")
            print(f"{ratio['scp']:>8.2f}{ratio['tar']:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepctl-bench-") as folder:
        found = measure(args, Path(folder))
    show(found)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=2) + "\n")
    worst = max(ratio for ways in found["ratio"].values() for sides in ways.values() for ratio in sides.values())
    if worst > SLOWER:
        sys.exit(f"a transfer takes {worst:.2f} times as long as another way, more than {SLOWER}")


if __name__ == "__main__":
    main()
