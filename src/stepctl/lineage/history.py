"""What was trained and chosen in a lineage, in order of time: one entry for each run, one for each choice."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepctl.lineage import layout
from stepctl.lineage.ledger import changes
from stepctl.lineage.records import Change, Identity, LedgerLine
from stepctl.lineage.view import View


class RunEntry(Struct, kw_only=True, tag_field="kind", tag="run"):
    """A run, however often it committed on its way: ``commits`` checkpoints, the last of them ``checkpoint``.

    It trained the steps after ``from_step`` up to ``step``, on what ``extends`` names (a checkpoint or a root);
    ``rows_done`` of the trace's ``rows_total`` rows are trained then. ``changed`` are the settings and versions that
    differ from the run before (null: not recorded). ``exact`` false: another split of the same rows may differ in
    bits. ``stored`` are its checkpoints that are not pruned; ``on_path`` false: it is not part of the head.
    Of a damaged checkpoint (``problem``) only some of this may be known.
    """

    run: str
    from_step: int
    step: int
    rows_done: int | None
    rows_total: int | None
    loss: float | None
    trace_sha256: str | None
    key: str | None
    created_at: str | None
    changed: list[Change] | None
    exact: bool | None
    extends: str | None
    checkpoint: str
    commits: int
    stored: list[str]
    on_path: bool
    problem: str | None = None


class ChoiceEntry(Struct, kw_only=True, tag_field="kind", tag="choice"):
    """A choice of where to go on: ``reason`` is rollback, use or fresh; ``at`` a checkpoint or a root, at ``step``.

    ``left`` is the head until then (null: not recorded). An unreadable one has null instead of all that.
    """

    number: int
    at: str | None
    step: int | None
    reason: str | None
    left: str | None
    run: str | None
    created_at: str | None


Entry = RunEntry | ChoiceEntry


class Log(Struct, kw_only=True):
    """The entries of a lineage, oldest first; a choice stands where it was made.

    ``head`` is null when there is none; ``identity`` is the head's (null also when its manifest cannot be read). With
    a ``problem`` the head is damaged, or not known for sure. ``notes`` are sentences for a person.
    """

    lineage: str
    bucket: str
    head: str | None
    step: int
    identity: Identity | None
    problem: str | None
    notes: list[str]
    entries: list[Entry]


_When = tuple[str, int, int]
"""Sorts entries: the time, choices before or after the runs of that moment, the step."""


def history(view: View, *, every: bool = False) -> list[Entry]:
    """The runs of the head's ancestry and all choices, oldest first; with ``every``, also runs beside the path."""
    times = _times(view)
    dated: list[tuple[_When, Entry]] = []
    for names in _runs(view, every):
        entry = _run_entry(view, names)
        dated.append(((times[names[-1]], 1, entry.step), entry))
    dated += [(_when(view, entry, times), entry) for entry in _choices(view)]
    return [entry for _, entry in sorted(dated, key=lambda pair: pair[0])]


def _times(view: View) -> dict[str, str]:
    """When each checkpoint was made; never before its parent, whatever the clocks of the machines said."""
    times: dict[str, str] = {}
    for node in sorted(view.tree.nodes.values(), key=lambda node: (node.step, node.name)):
        own = view.lines[node.name].created_at if node.name in view.lines else ""
        times[node.name] = max(own, times.get(node.parent or "", ""))
    return times


def _runs(view: View, every: bool) -> Iterator[list[str]]:
    """The checkpoints of each run, oldest first; what a run made beside the path is a group of its own."""
    path, groups = set(view.path), dict[tuple[bool, str], list[str]]()
    for node in sorted(view.tree.nodes.values(), key=lambda node: node.step):
        parsed = layout.parse_checkpoint(node.name)
        if parsed and (every or node.name in path):
            groups.setdefault((node.name in path, parsed[1]), []).append(node.name)
    yield from groups.values()


def _run_entry(view: View, names: list[str]) -> RunEntry:
    node = view.tree.nodes[names[-1]]
    line, first = view.lines.get(names[-1]), view.tree.nodes[names[0]]
    before = view.tree.nodes.get(first.parent or "")
    parsed = layout.parse_checkpoint(node.name)
    assert parsed is not None
    stored = [name for name in names if name in view.tree.complete]
    problems = {name: problem for name in names if (problem := view.problem_of(name))}
    return RunEntry(
        run=parsed[1],
        from_step=before.step if before else 0,
        step=node.step,
        rows_done=line.rows_done if line else None,
        rows_total=line.rows_total if line else None,
        loss=line.loss if line else None,
        trace_sha256=line.trace_sha256 if line else None,
        key=line.key if line else None,
        created_at=line.created_at if line else None,
        changed=_changed(view, names, line),
        exact=_exact(view, names),
        extends=first.parent,
        checkpoint=node.name,
        commits=len(names),
        stored=stored,
        on_path=node.name in view.path,
        problem="; ".join(f"{name}: {problem}" for name, problem in problems.items()) or None,
    )


def _exact(view: View, names: list[str]) -> bool | None:
    """False as soon as one of its checkpoints says so."""
    said = []
    for name in names:
        line, manifest = view.lines.get(name), view.tree.complete.get(name)
        said.append(line.exact if line and line.exact is not None else manifest.exact if manifest else None)
    return False if False in said else None if None in said else True


def _changed(view: View, names: list[str], line: LedgerLine | None) -> list[Change] | None:
    """As the ledger has it; for older ledgers from the manifests, while both are stored."""
    if line is not None and line.changed is not None:
        return list(line.changed)
    parent = view.tree.nodes[names[0]].parent
    if parent is not None and layout.is_root(parent):
        return []
    own = next((view.tree.complete[name] for name in names if name in view.tree.complete), None)
    before = view.tree.complete.get(parent or "")
    return list(changes(before, own.settings, own.versions)) if own and before else None


def _choices(view: View) -> Iterator[ChoiceEntry]:
    for number, choice in view.tree.choices:
        node = view.tree.nodes.get(choice.at) if choice else None
        root = choice is not None and layout.is_root(choice.at)
        yield ChoiceEntry(
            number=number,
            at=choice.at if choice else None,
            step=node.step if node else 0 if root else None,
            reason=choice.reason if choice else None,
            left=choice.left if choice else None,
            run=choice.run if choice else None,
            created_at=choice.created_at if choice else None,
        )


def _when(view: View, entry: ChoiceEntry, times: dict[str, str]) -> _When:
    """A choice comes after what it chose. That of a new root is written with the first commit: it comes before."""
    first = [times[node.name] for node in view.tree.children(entry.at)] if entry.at else []
    if entry.reason == "fresh" and first:
        return min(first), 0, entry.number
    return max(entry.created_at or "", times.get(entry.at or "", "")), 2, entry.number
