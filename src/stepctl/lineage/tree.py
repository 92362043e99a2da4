"""What the bucket has of one lineage, as a tree: complete checkpoints, pruned ones that ledgers name, damaged ones."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec

from stepctl.base.errors import DamagedCheckpoint, StepctlError
from stepctl.base.files import sha256_bytes
from stepctl.base.names import check_name
from stepctl.lineage import layout
from stepctl.lineage.buckets.base import Absent, Bucket, BucketError, Changed, Stored
from stepctl.lineage.ledger import Ledger, LedgerBroken, check_ledger, decode_ledger
from stepctl.lineage.manifest import damaged, decode_manifest
from stepctl.lineage.records import Choice, FileEntry, Manifest

_READS = 8

LARGEST_RECORD = 64 << 20
"""Bytes of a manifest or a choice; what is larger is none, and is not read."""

_CHANGED = "arrives with other content than it was stored with"

Folder = dict[str, Stored]
"""The stored files of one checkpoint by path relative to it."""


@dataclass(frozen=True)
class Node:
    """One checkpoint.

    ``manifest`` is None when it is pruned (known from a ledger) or cannot be used; then ``problem`` says why.
    ``parent`` is None when nothing tells it. ``stored_at`` is its manifest's, None for a pruned one. A complete node
    can have a ``problem`` too: a bad ledger.
    """

    name: str
    step: int
    parent: str | None
    stored_at: int | None = None
    manifest: Manifest | None = None
    sha256: str | None = None
    problem: StepctlError | None = None

    @property
    def pruned(self) -> bool:
        """Only a ledger knows it."""
        return self.stored_at is None


@dataclass(frozen=True)
class Tree:
    """``choices`` are in order of their numbers, None for one that cannot be read; ``claims`` are the claimed keys.

    ``folders`` are the stored files by checkpoint, complete or not; ``ledgers`` those that were read, by checkpoint
    (a checkpoint that another's ledger names need not have been read). ``strays`` are paths that belong to nothing.
    """

    lineage: str
    choices: tuple[tuple[int, Choice | None], ...]
    claims: frozenset[str]
    folders: Mapping[str, Folder]
    nodes: Mapping[str, Node]
    ledgers: Mapping[str, Ledger]
    strays: tuple[str, ...] = ()
    listing: tuple[Stored, ...] = field(default=(), repr=False)

    @cached_property
    def complete(self) -> dict[str, Manifest]:
        """The manifests of the complete checkpoints."""
        return {name: node.manifest for name, node in self.nodes.items() if node.manifest is not None}

    @property
    def incomplete(self) -> list[str]:
        """Checkpoint folders without a manifest."""
        return [name for name, folder in self.folders.items() if layout.MANIFEST not in folder and "" not in folder]

    @property
    def unplaced(self) -> list[Node]:
        """Damaged checkpoints of which nothing tells the parent."""
        return self._by_parent.get(None, [])

    def previous(self, name: str) -> str | None:
        """The nearest complete ancestor: what a person can go back to."""
        return next((each for each in self.ancestry(name)[1:] if each in self.complete), None)

    def children(self, parent: str) -> list[Node]:
        """The children of a checkpoint or root in the order in which they were stored.

        A pruned one comes first: it was on the head's path once. Siblings that were stored at once go by name.
        """
        return sorted(self._by_parent.get(parent, []), key=lambda node: (node.stored_at or 0, node.name))

    @cached_property
    def _by_parent(self) -> dict[str | None, list[Node]]:
        found: dict[str | None, list[Node]] = {}
        for node in self.nodes.values():
            found.setdefault(node.parent, []).append(node)
        return found

    def ancestry(self, name: str) -> list[str]:
        """``name`` and its ancestors, newest first, without the root."""
        names = []
        node = self.nodes.get(name)
        while node is not None:
            names.append(node.name)
            node = self.nodes.get(node.parent) if node.parent is not None else None
        return names


def survey(bucket: Bucket, lineage: str) -> Tree:
    """Read one lineage. Damage does not raise: it is noted at its node.

    Raises:
        UsageError: ``lineage`` is not usable as a name.
        BucketError: the storage fails; ``Absent`` when something was deleted while this was reading.
    """
    check_name("lineage", lineage)
    # Marks first: what they name was complete when they were made, so the later listing has it, unless it is pruned.
    choice_files = bucket.list_files(layout.choices_at(lineage))
    claim_files = bucket.list_files(layout.claims_at(lineage))
    files = bucket.list_files(layout.checkpoints_at(lineage))
    folders, strays = _grouped(files, layout.checkpoints_at(lineage))
    nodes = {}
    for name, folder in folders.items():
        node = _read_node(bucket, lineage, name, folder)
        if node is not None:
            nodes[name] = node
    ledgers = _place(bucket, lineage, nodes, folders)
    return Tree(
        lineage=lineage,
        choices=_read_choices(bucket, choice_files),
        claims=frozenset(
            stored.path.rsplit("/", 1)[-1].removesuffix(".json")
            for stored in claim_files
            if stored.plain and stored.path.endswith(".json")
        ),
        folders=folders,
        nodes=nodes,
        ledgers=ledgers,
        strays=tuple(strays),
        listing=(*choice_files, *claim_files, *files),
    )


def survey_unlocked(bucket: Bucket, lineage: str) -> Tree:
    """As :func:`survey`, for who does not hold the lock: what is deleted while this reads is no failure."""
    for _ in range(_READS):
        with contextlib.suppress(Absent):
            return survey(bucket, lineage)
    return survey(bucket, lineage)


def size_problem(entry: FileEntry, stored: Stored | None) -> str | None:
    """What is wrong with a stored file, as far as a listing tells."""
    if stored is None:
        return "is missing"
    if not stored.plain:
        return "is a link, and links are not followed"
    return None if stored.size == entry.size else f"has {stored.size} bytes, the manifest says {entry.size}"


def read_ledger(bucket: Bucket, manifest: Manifest, folder: Folder) -> Ledger:
    """A checkpoint's ledger, verified against its manifest and held against the listing of its ``folder``.

    Raises:
        DamagedCheckpoint: it is missing, or not what the manifest says.
    """
    lineage, name = manifest.lineage, manifest.checkpoint
    entry = next(entry for entry in manifest.files if entry.path == layout.LEDGER)
    if problem := size_problem(entry, folder.get(layout.LEDGER)):
        raise damaged(lineage, name, layout.LEDGER, problem)
    try:
        data = bucket.read(f"{layout.checkpoint_at(lineage, name)}/{layout.LEDGER}")
    except Changed:
        raise damaged(lineage, name, layout.LEDGER, _CHANGED) from None
    if (found := sha256_bytes(data)) != entry.sha256:
        raise damaged(lineage, name, layout.LEDGER, f"has sha256 {found}, the manifest says {entry.sha256}")
    return check_ledger(data, manifest)


def _grouped(files: Sequence[Stored], prefix: str) -> tuple[dict[str, Folder], list[str]]:
    """Files by checkpoint; a link in the place of a checkpoint has the empty path. Then the paths of no checkpoint."""
    folders: dict[str, Folder] = {}
    strays = []
    for stored in files:
        name, slash, rest = stored.path.removeprefix(prefix + "/").partition("/")
        if layout.parse_checkpoint(name) and (slash or not stored.plain):
            folders.setdefault(name, {})[rest or ("/" if slash else "")] = stored
        else:
            strays.append(stored.path)
    return folders, strays


def _read_node(bucket: Bucket, lineage: str, name: str, folder: Folder) -> Node | None:
    parsed = layout.parse_checkpoint(name)
    stored = folder.get(layout.MANIFEST) or folder.get("")
    if stored is None or parsed is None:
        return None
    node = Node(name=name, step=parsed[0], parent=None, stored_at=stored.stored_at)
    if not stored.plain:
        path = stored.path.rsplit("/", 1)[-1]
        return replace(node, problem=damaged(lineage, name, path, "is a link, and links are not followed"))
    if stored.size > LARGEST_RECORD:
        problem = f"has {stored.size} bytes, which no manifest has"
        return replace(node, problem=damaged(lineage, name, layout.MANIFEST, problem))
    try:
        data = bucket.read(stored.path)
        manifest = decode_manifest(data, lineage, name)
    except Changed:
        return replace(node, problem=damaged(lineage, name, layout.MANIFEST, _CHANGED))
    except StepctlError as error:
        if isinstance(error, BucketError):
            raise
        return replace(node, problem=error)
    return replace(node, parent=manifest.parent, manifest=manifest, sha256=sha256_bytes(data))


def _place(bucket: Bucket, lineage: str, nodes: dict[str, Node], folders: Mapping[str, Folder]) -> dict[str, Ledger]:
    """Read the ledgers that no newer one covers; add pruned checkpoints to ``nodes``, and place damaged ones."""
    ledgers: dict[str, Ledger] = {}
    parents = {name: node.manifest.parent for name, node in nodes.items() if node.manifest}
    covered: set[str] = set()
    for node in sorted(nodes.values(), key=lambda node: (node.step, node.name), reverse=True):
        if node.manifest is None or node.name in covered:
            continue
        try:
            ledger = read_ledger(bucket, node.manifest, folders[node.name])
            for line in ledger:
                if (known_parent := parents.get(line.checkpoint, line.parent)) != line.parent:
                    problem = f"says that {line.checkpoint} extends {line.parent}, not {known_parent}"
                    raise damaged(lineage, node.name, layout.LEDGER, problem)
        except DamagedCheckpoint as error:
            nodes[node.name] = replace(node, problem=error)
            continue
        parents.update((line.checkpoint, line.parent) for line in ledger)
        ledgers[node.name] = ledger
        covered.update(line.checkpoint for line in ledger)
        for line in ledger:
            known = nodes.get(line.checkpoint)
            if known is None:
                nodes[line.checkpoint] = Node(name=line.checkpoint, step=line.step, parent=line.parent)
            elif known.parent is None:
                nodes[line.checkpoint] = replace(known, parent=line.parent)
    for node in list(nodes.values()):
        if node.parent is None:
            nodes[node.name] = replace(node, parent=_parent_by_ledger(bucket, lineage, node.name, folders[node.name]))
    return ledgers


def _parent_by_ledger(bucket: Bucket, lineage: str, name: str, folder: Folder) -> str | None:
    """What the ledger of a checkpoint with an unusable manifest says: enough to know that the head's walk meets it."""
    stored = folder.get(layout.LEDGER)
    if stored is None or not stored.plain:
        return None
    try:
        line = decode_ledger(bucket.read(stored.path))[-1]
    except (Changed, LedgerBroken):
        return None
    return line.parent if line.checkpoint == name else None


def _read_choices(bucket: Bucket, files: Sequence[Stored]) -> tuple[tuple[int, Choice | None], ...]:
    choices: list[tuple[int, Choice | None]] = []
    numbered = [(layout.choice_number(stored.path.rsplit("/", 1)[-1]), stored) for stored in files]
    known = [(number, stored) for number, stored in numbered if number is not None]
    # Two that were made at once can have one number: the one that was stored last is the newer one.
    for number, stored in sorted(known, key=lambda each: (each[0], each[1].stored_at, each[1].path)):
        try:
            readable = stored.plain and stored.size <= LARGEST_RECORD
            choice = msgspec.json.decode(bucket.read(stored.path), type=Choice) if readable else None
        except (Changed, msgspec.MsgspecError, UnicodeDecodeError):
            choice = None
        choices.append((number, choice))
    return tuple(choices)
