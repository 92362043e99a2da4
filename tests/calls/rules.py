"""The rules of exactly-once (docs/lineage.md) written a second time, as plainly as can be.

Nothing of stepctl is imported. What a call does follows from the tree of checkpoints; what a checkpoint holds follows
from its run: the chain of hashes that the stand-in makes of every row it trained.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROOT = "root"
START = "start"
"""The stand-in's chain before the first row."""


def token_ids(row: dict[str, Any]) -> list[int]:
    """A chat row in ChatML, a token for each byte; the special tokens come after the 256 bytes."""
    # Bytes in the order of their GPT-2 characters: those that print, as they are; the others as what follows U+0100.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = plain + [byte for byte in range(0x100) if byte not in plain]
    number = {byte: i for i, byte in enumerate(order)}
    ids: list[int] = []
    for message in row["messages"]:
        text = f"{message['role']}\n{message['content']}".encode()
        ids += [257, *(number[byte] for byte in text), 258, number[0x0A]]
    return ids


@dataclass(frozen=True)
class Trace:
    """A file of examples."""

    name: str
    data: bytes
    rows: tuple[bytes, ...]
    """What the stand-in hashes of each row."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def make_trace(name: str, rows: Sequence[dict[str, Any]]) -> Trace:
    """A trace of these chat rows."""
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    ids = [token_ids(row) for row in rows]
    return Trace(name, data, tuple(struct.pack(f"{len(each)}i", *each) for each in ids))


@dataclass(frozen=True)
class Ask:
    """What a call asks for."""

    trace: Trace
    key: str | None = None
    go_on: bool = False
    fresh: bool = False
    expect: int | None = None


@dataclass
class Run:
    """A run as the rules foresee it when it begins."""

    name: str
    ask: Ask
    key: str | None
    rows_start: int
    parent: str
    from_step: int
    new_root: bool
    group: int
    keep: int
    every_step: bool

    @property
    def steps(self) -> int:
        return math.ceil((len(self.ask.trace.rows) - self.rows_start) / self.group)

    @property
    def last(self) -> int:
        return self.from_step + self.steps

    def rows_at(self, step: int) -> int:
        return min(self.rows_start + (step - self.from_step) * self.group, len(self.ask.trace.rows))


@dataclass
class Checkpoint:
    """A checkpoint that was stored once."""

    name: str
    parent: str
    step: int
    run: Run
    rows_done: int
    chain: str
    trained: int
    forked: bool = False
    """Whether it was one when it had been stored."""

    @property
    def whole(self) -> bool:
        return self.rows_done >= len(self.run.ask.trace.rows)


@dataclass(frozen=True)
class Decision:
    """``refused`` are the codes that a refusal may have; else ``replay`` answers; else rows from ``rows_start`` on."""

    refused: frozenset[str] = frozenset()
    replay: Checkpoint | None = None
    rows_start: int = 0
    key: str | None = None
    fresh: bool = False


def refuse(*codes: str) -> Decision:
    return Decision(refused=frozenset(codes))


@dataclass
class Rules:
    """A lineage. ``children`` are in the order in which they were stored; ``alive`` has what is not pruned."""

    nodes: dict[str, Checkpoint] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    choices: list[tuple[str, frozenset[str]]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.nodes and not self.choices

    # --- the head -------------------------------------------------------------------------------------------------

    @property
    def head(self) -> str:
        """From the newest choice, or the root, always on to the child that was stored first."""
        at, passed = self.choices[-1] if self.choices else (ROOT, frozenset[str]())
        while kids := [name for name in self.children.get(at, []) if name not in passed]:
            at, passed = kids[0], frozenset()
        return at

    @property
    def head_step(self) -> int:
        return self.nodes[self.head].step if self.head in self.nodes else 0

    def ancestry(self, name: str) -> list[Checkpoint]:
        """Oldest first, ``name`` the last."""
        found: list[Checkpoint] = []
        while name in self.nodes:
            found.insert(0, self.nodes[name])
            name = self.nodes[name].parent
        return found

    def on_path(self, name: str) -> bool:
        return any(node.name == name for node in self.ancestry(self.head))

    # --- a call ---------------------------------------------------------------------------------------------------

    def decide(self, ask: Ask) -> Decision:
        """The table of docs/lineage.md, row by row."""
        path = self.ancestry(self.head)
        other_step = ask.expect is not None and ask.expect != (0 if ask.fresh else self.head_step)
        if ask.key is None:
            return self._without_key(ask, path, other_step)
        under_key = [node for node in path if node.run.key == ask.key]
        if ask.fresh and not (path and path[0].run.key == ask.key):
            return refuse("other_step") if other_step else Decision(key=ask.key, fresh=True)
        if under_key and under_key[-1].run.ask.trace != ask.trace:
            return refuse("key_conflict")
        if under_key and under_key[-1].whole:
            return Decision(replay=under_key[-1])
        # A repeated fresh start goes on with what it began: then it is the head's step that is expected.
        if ask.expect is not None and ask.expect != self.head_step:
            return refuse("other_step")
        return Decision(rows_start=under_key[-1].rows_done if under_key else 0, key=ask.key)

    def _without_key(self, ask: Ask, path: list[Checkpoint], other_step: bool) -> Decision:
        before = [node for node in path if node.run.ask.trace == ask.trace]
        if ask.fresh:
            return refuse("other_step") if other_step else Decision(fresh=True)
        if ask.go_on and before and before[-1].whole:
            return Decision(replay=before[-1])
        if not ask.go_on and before and before[-1] is path[-1] and not before[-1].whole:
            return refuse("unfinished_trace", *(["other_step"] if other_step else []))
        if other_step:
            return refuse("other_step")
        if ask.go_on and before:
            return Decision(rows_start=before[-1].rows_done, key=before[-1].run.key)
        return Decision()

    # --- what happens ---------------------------------------------------------------------------------------------

    def newest(self, run: Run) -> Checkpoint | None:
        """The last checkpoint of a run that was stored."""
        mine = [node for node in self.nodes.values() if node.run is run]
        return max(mine, key=lambda node: node.step, default=None)

    def checkpoint(self, run: Run, step: int) -> Checkpoint:
        """What a run's checkpoint at ``step`` must hold: all rows from its start, in order, each once."""
        before = self.newest(run)
        start = self.nodes.get(run.parent)
        chain, trained = (start.chain, start.trained) if start else (START, 0)
        rows = run.ask.trace.rows[run.rows_start : run.rows_at(step)]
        for row in rows:
            chain = hashlib.sha256(chain.encode() + row).hexdigest()
        return Checkpoint(
            name=f"{step:08d}-{run.name}",
            parent=before.name if before else run.parent,
            step=step,
            run=run,
            rows_done=run.rows_at(step),
            chain=chain,
            trained=trained + len(rows),
        )

    def store(self, node: Checkpoint) -> None:
        """``node`` is complete now; the first one of a fresh start makes its root the start, unless that is done."""
        self.nodes[node.name] = node
        self.children.setdefault(node.parent, []).append(node.name)
        self.alive.add(node.name)

    def choose_root(self, run: Run) -> None:
        if run.new_root and all(at != run.parent for at, _ in self.choices):
            self.choices.append((run.parent, frozenset()))

    def choose(self, at: str) -> None:
        """Rollback and ``use``: what is there after ``at`` is passed over."""
        if at != self.head:
            self.choices.append((at, frozenset(self.children.get(at, []))))

    def doomed(self, keep: int) -> set[str]:
        """The head's ancestors that pruning deletes: all but the newest ``keep`` of its path."""
        path = [node.name for node in self.ancestry(self.head) if node.name in self.alive]
        return set(path[:-keep])
