"""The door of this room: what the others call."""

from __future__ import annotations

from stepctl.lineage.commit import CommitResult, choose, commit
from stepctl.lineage.fetch import check_folder, fetch_checkpoint
from stepctl.lineage.identity import differences, require_same
from stepctl.lineage.ledger import by_key, by_trace, ledger_for, runs_of
from stepctl.lineage.manifest import build_manifest, decode_manifest, encode_manifest, entries_of
from stepctl.lineage.prune import clean_leftovers, prune
from stepctl.lineage.state import CheckpointInfo, LineageState, lines_of, read_lineage
from stepctl.lineage.verify import Damage, Report, verify

__all__ = [
    "CheckpointInfo",
    "CommitResult",
    "Damage",
    "LineageState",
    "Report",
    "build_manifest",
    "by_key",
    "by_trace",
    "check_folder",
    "choose",
    "clean_leftovers",
    "commit",
    "decode_manifest",
    "differences",
    "encode_manifest",
    "entries_of",
    "fetch_checkpoint",
    "ledger_for",
    "lines_of",
    "prune",
    "read_lineage",
    "require_same",
    "runs_of",
    "verify",
]
