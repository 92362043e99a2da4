"""Random histories against a small model of the head's rule."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.lineage.making import Died, dying, make

from stepctl.base.names import utc_now
from stepctl.lineage.buckets import open_bucket
from stepctl.lineage.records import ROOT, LedgerLine, Manifest
from stepctl.lineage.store import choose, clean_leftovers, commit, prune, read_lineage, verify


@dataclass
class Model:
    """``children`` in the order in which their manifests were stored, or claimed; ``start`` is the newest choice."""

    start: str = ROOT
    passed: frozenset[str] = frozenset()
    children: dict[str, list[str]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)

    @property
    def head(self) -> str:
        at, passed = self.start, self.passed
        while kids := [kid for kid in self.children.get(at, []) if kid not in passed]:
            at, passed = kids[0], frozenset()
        return at

    def ancestry(self, name: str) -> list[str]:
        """Oldest first."""
        names: list[str] = []
        while name in self.parents:
            names.insert(0, name)
            name = self.parents[name]
        return names

    def store(self, name: str, parent: str) -> None:
        self.children.setdefault(parent, []).append(name)
        self.parents[name] = parent
        self.alive.add(name)


class Lineages(RuleBasedStateMachine):
    """Commits from the head and from stale parents, fresh roots, choices, pruning, deaths and repeats."""

    @initialize()
    def begin(self) -> None:
        self.base = Path(tempfile.mkdtemp())
        self.bucket = open_bucket(str(self.base / "bucket"))
        self.model = Model()
        self.count = 0
        self.pending: dict[str, tuple[Path, Manifest, bool]] = {}
        self.ledgers: dict[str, tuple[LedgerLine, ...]] = {}

    def teardown(self) -> None:
        if hasattr(self, "base"):
            shutil.rmtree(self.base)

    def _new(self, parent: str, steps: int, *, fresh: bool = False) -> tuple[Path, Manifest, bool]:
        self.count += 1
        ledger = self.ledgers.get(parent, ())
        # Names sort against the order of storing, so that a rule by name alone would be caught.
        folder, manifest = make(
            self.base / "work", f"r{999 - self.count}", parent=parent, ledger=ledger, steps=steps, key=f"k{self.count}"
        )
        own = LedgerLine(
            **{name: getattr(manifest, name) for name in LedgerLine.__struct_fields__ if hasattr(manifest, name)},
            from_step=ledger[-1].step if ledger else 0,
        )
        self.ledgers[manifest.checkpoint] = (*ledger, own)
        return folder, manifest, fresh

    def _commit(self, made: tuple[Path, Manifest, bool], die_at: int) -> None:
        folder, manifest, fresh = made
        name = manifest.checkpoint
        died = False
        try:
            with dying(die_at):
                result = commit(self.bucket, folder, manifest, choose_root=fresh)
        except Died:
            died = True
            self.pending[name] = made
        stored = (self.base / "bucket" / "main" / "checkpoints" / name / "manifest.json").exists()
        if stored and name not in self.model.parents:
            self.model.store(name, manifest.parent)
        chosen = any(f'"at":"{manifest.parent}"' in text for text in self._choices())
        if fresh and chosen and name not in self.fresh_done:
            self.fresh_done.add(name)
            self.model.start, self.model.passed = manifest.parent, frozenset()
        if not died:
            self.pending.pop(name, None)
            assert stored or name not in self.model.alive
            assert result.head == self.model.head
            assert result.forked == (name not in self.model.ancestry(self.model.head))

    def _choices(self) -> list[str]:
        return [path.read_text() for path in (self.base / "bucket" / "main").glob("choices/0*.json")]

    @property
    def fresh_done(self) -> set[str]:
        return self.__dict__.setdefault("_fresh_done", set())

    die_at = st.one_of(st.just(10**9), st.integers(0, 60))

    @rule(steps=st.integers(1, 3), die_at=die_at)
    def commit_on_the_head(self, steps: int, die_at: int) -> None:
        self._commit(self._new(self.model.head, steps), die_at)

    @precondition(lambda self: self.model.parents)
    @rule(data=st.data(), die_at=die_at)
    def commit_on_a_stale_parent(self, data: st.DataObject, die_at: int) -> None:
        parent = data.draw(st.sampled_from(sorted({*self.model.parents, *self.model.parents.values()})))
        self._commit(self._new(parent, 1), die_at)

    @rule(die_at=die_at)
    def commit_fresh(self, die_at: int) -> None:
        self._commit(self._new(f"root-{self.count}", 1, fresh=True), die_at)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), die_at=die_at)
    def repeat_an_interrupted_commit(self, data: st.DataObject, die_at: int) -> None:
        self._commit(self.pending[data.draw(st.sampled_from(sorted(self.pending)))], die_at)

    @precondition(lambda self: self.model.alive)
    @rule(data=st.data())
    def choose_a_checkpoint(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.model.alive)))
        with dying(10**9):
            chosen = choose(self.bucket, "main", at, "use")
        assert (chosen is None) == (at == self.model.head)
        if chosen is not None:
            self.model.start, self.model.passed = at, frozenset(self.model.children.get(at, []))

    @rule(keep=st.integers(1, 3), die_at=die_at)
    def prune_the_path(self, keep: int, die_at: int) -> None:
        complete = [name for name in self.model.ancestry(self.model.head) if name in self.model.alive]
        try:
            with dying(die_at):
                prune(self.bucket, "main", keep)
        except Died:
            left = {path.parent.name for path in (self.base / "bucket").glob("main/checkpoints/*/manifest.json")}
            assert set(complete[-keep:]) <= left
            self.model.alive &= left
        else:
            self.model.alive -= set(complete[:-keep])

    @rule()
    def clear(self) -> None:
        with dying(10**9):
            clean_leftovers(self.bucket, "main", f"r{999 - self.count}", utc_now())

    @invariant()
    def the_head_is_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        state = read_lineage(self.bucket, "main")
        assert state.parent == self.model.head
        assert state.notes == []
        assert state.ledger == self.ledgers.get(self.model.head, ())
        assert {info.manifest.checkpoint for info in state.checkpoints} == self.model.alive
        assert verify(self.bucket, "main").damages == []


TestLineages = Lineages.TestCase
TestLineages.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
