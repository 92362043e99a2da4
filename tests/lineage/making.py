"""Checkpoints, crashes and damage for the tests of this room."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepctl.lineage.buckets import Bucket
from stepctl.lineage.records import ROOT, Identity, LedgerLine, Manifest, checkpoint_name
from stepctl.lineage.store import CommitResult, LineageState, build_manifest, commit, ledger_for, read_lineage

both = pytest.mark.parametrize("bucket", ["directory", "hub"], indirect=True)
"""For what must hold of every kind of bucket."""

IDENTITY = Identity(
    model="org/model",
    revision="0" * 40,
    method="sft",
    r=8,
    alpha=16,
    dropout=0.0,
    target_modules=("q_proj", "v_proj"),
    vocab_size=1000,
)
NOW = "2026-11-30T04:15:02.000000Z"


def make(
    base: Path,
    run: str,
    *,
    parent: str = ROOT,
    ledger: Sequence[LedgerLine] = (),
    steps: int = 1,
    key: str | None = None,
    lineage: str = "main",
) -> tuple[Path, Manifest]:
    """A folder with the files of a checkpoint, as a trainer saves it, and its manifest."""
    from_step = ledger[-1].step if ledger else 0
    step = from_step + steps
    trace = hashlib.sha256(run.encode()).hexdigest()
    line = LedgerLine(
        checkpoint=checkpoint_name(step, run),
        parent=parent,
        run=run,
        key=key,
        trace_sha256=trace,
        rows_done=steps * 2,
        rows_total=steps * 2,
        from_step=from_step,
        step=step,
        loss=0.5,
        created_at=NOW,
        exact=True,
    )
    folder = base / f"{lineage}-{step}-{run}"
    (folder / "reference").mkdir(parents=True)
    (folder / "ledger.jsonl").write_bytes(ledger_for(ledger, line))
    (folder / "adapter.safetensors").write_bytes(f"adapter of {run}".encode() * 20)
    (folder / "reference" / "adapter.safetensors").write_bytes(b"the same in all")
    manifest = build_manifest(
        folder,
        lineage=lineage,
        parent=parent,
        step=step,
        run=run,
        key=key,
        trace_sha256=trace,
        rows_done=steps * 2,
        rows_total=steps * 2,
        identity=IDENTITY,
        settings={"learning_rate": 1e-4, "target_modules": ["q_proj"]},
        versions={"torch": "2"},
        exact=True,
        loss=0.5,
        created_at=NOW,
    )
    return folder, manifest


def make_next(
    base: Path, state: LineageState, run: str, *, steps: int = 1, key: str | None = None
) -> tuple[Path, Manifest]:
    """As :func:`make`, on top of what was read."""
    return make(base, run, parent=state.parent, ledger=state.ledger, steps=steps, key=key)


def extend(bucket: Bucket, base: Path, run: str, *, steps: int = 1, key: str | None = None) -> CommitResult:
    """Read the head and commit one checkpoint on it."""
    return commit(bucket, *make_next(base, read_lineage(bucket, "main"), run, steps=steps, key=key))


class Died(BaseException):
    """The process is dead: nothing it does after this reaches the disk."""


DURABLE = ("replace", "link", "unlink", "mkdir", "rmdir", "fsync")


@contextmanager
def dying(at: int) -> Iterator[list[str]]:
    """Die before the durable operation number ``at`` (from 0); yields the names of the operations that were made.

    Cleaning up fails too, as it would in a process that is killed. fsync is counted, not done.
    """
    made: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in DURABLE:
            real = getattr(os, name)

            def step(*args: object, _name: str = name, _real: object = real, **kwargs: object) -> object:
                if len(made) >= at:
                    raise Died(_name)
                made.append(_name)
                return None if _name == "fsync" else _real(*args, **kwargs)  # type: ignore[operator]

            patch.setattr(os, name, step)
        yield made


def files_below(folder: Path) -> dict[str, bytes]:
    """Everything below ``folder`` by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
