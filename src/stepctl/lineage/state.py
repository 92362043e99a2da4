"""Reading a lineage: its head, what a new checkpoint extends, what was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepctl.base.errors import DamagedCheckpoint, StepctlError
from stepctl.lineage.buckets.base import Absent, Bucket, Stored
from stepctl.lineage.head import Walk, settle, walk
from stepctl.lineage.ledger import Ledger
from stepctl.lineage.manifest import damaged
from stepctl.lineage.records import FileEntry, LedgerLine, Manifest
from stepctl.lineage.tree import Folder, Tree, read_ledger, size_problem, survey, survey_unlocked

_READS = 8


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint: ``bytes`` in the bucket; ``on_path`` when it is the head or an ancestor of it."""

    manifest: Manifest
    bytes: int
    is_head: bool
    on_path: bool


@dataclass(frozen=True)
class LineageState:
    """A lineage at one moment.

    ``parent`` is what the next checkpoint extends: the head, or the current root when there is no head; ``head_step``
    then is 0. ``head_sha256`` is of the stored manifest's bytes. ``ledger`` is the head's ancestry, oldest first.
    ``checkpoints`` are in order of their names. ``incomplete`` names folders without a manifest. ``empty`` says that
    nothing was ever committed or chosen here. ``notes`` are sentences for a person.
    """

    head: Manifest | None
    head_sha256: str | None
    head_step: int
    parent: str
    ledger: Ledger
    checkpoints: list[CheckpointInfo]
    incomplete: list[str]
    empty: bool
    notes: list[str]


def read_lineage(bucket: Bucket, name: str, *, claim: bool = False) -> LineageState:
    """Read a lineage; one that does not exist is empty. With ``claim``, fix the head against later siblings (writes).

    Raises:
        DamagedCheckpoint: the head cannot be used; it is never passed over for an older one.
        StepctlError: the head cannot be known (``damaged_lineage``), or is of a newer release (``manifest_version``).
        BucketError: the storage fails.
        LineageConflict: with ``claim``, another process holds the lock.
    """
    if not claim:
        return _read_stable(bucket, name)
    with bucket.lock(name):
        return state_of(bucket, *settle(bucket, name))


def state_of(bucket: Bucket, tree: Tree, found: Walk) -> LineageState:
    """The state that a walk gives.

    Raises:
        DamagedCheckpoint: the head's ledger, or the size of one of its files, is not what its manifest says.
    """
    head = tree.nodes[found.head].manifest if found.head in tree.nodes else None
    path = set(tree.ancestry(found.head))
    if head is not None:
        check_sizes(tree, head)
    return LineageState(
        head=head,
        head_sha256=tree.nodes[found.head].sha256 if head else None,
        head_step=head.step if head else 0,
        parent=found.head,
        ledger=(tree.ledgers.get(found.head) or read_ledger(bucket, head, tree.folders[found.head])) if head else (),
        checkpoints=[
            CheckpointInfo(
                manifest=manifest,
                bytes=sum(stored.size for stored in tree.folders[name].values()),
                is_head=name == found.head,
                on_path=name in path,
            )
            for name, manifest in sorted(tree.complete.items())
        ],
        incomplete=tree.incomplete,
        empty=not tree.nodes and not tree.choices,
        notes=found.notes,
    )


def lines_of(bucket: Bucket, lineage: str, run: str) -> list[LedgerLine]:
    """Every checkpoint that a run stored, oldest first: kept or pruned, on the head's path or beside it.

    Raises:
        BucketError: the storage fails.
    """
    ledgers = survey_unlocked(bucket, lineage).ledgers.values()
    found = {line.checkpoint: line for ledger in ledgers for line in ledger if line.run == run}
    return sorted(found.values(), key=lambda line: line.step)


def check_sizes(tree: Tree, manifest: Manifest, entries: Sequence[FileEntry] | None = None) -> None:
    """Hold the listing against a manifest, or against some of its ``entries``, without reading a file.

    Raises:
        DamagedCheckpoint: a file is missing, a link, or of another size; the complete checkpoint before it is named.
    """
    problems = size_problems(manifest, tree.folders[manifest.checkpoint], entries)
    if problems:
        path, problem = next(iter(problems.items()))
        previous = tree.previous(manifest.checkpoint)
        raise damaged(manifest.lineage, manifest.checkpoint, path, problem, previous=previous)


def size_problems(manifest: Manifest, folder: Folder, entries: Sequence[FileEntry] | None = None) -> dict[str, str]:
    """What is wrong by path, as far as a listing tells; of some ``entries`` only, if they are given."""
    wanted = manifest.files if entries is None else entries
    found = {entry.path: size_problem(entry, folder.get(entry.path)) for entry in wanted}
    return {path: problem for path, problem in found.items() if problem is not None}


def _read_stable(bucket: Bucket, name: str) -> LineageState:
    """Read without the lock: what looks wrong counts only when the listing is the same the next time."""
    before: tuple[Stored, ...] | None = None
    failure: StepctlError | None = None
    for _ in range(_READS):
        tree: Tree | None = None
        failure = None
        try:
            tree = survey(bucket, name)
            state = state_of(bucket, tree, walk(bucket, tree))
            if not state.notes or tree.listing == before:
                return state
        except (Absent, DamagedCheckpoint) as error:
            failure = error
        except StepctlError as error:
            if error.code != "damaged_lineage":
                raise
            failure = error
        if failure is not None and tree is not None and tree.listing == before:
            raise failure
        before = tree.listing if tree else None
    raise failure or StepctlError(f"lineage {name} keeps changing", safe="nothing is lost", next="repeat the command")
