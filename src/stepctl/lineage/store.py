"""The door of this room: what the others call."""

from __future__ import annotations

from stepctl.lineage.commit import CommitResult, choose, commit
from stepctl.lineage.fetch import check_folder, copy_checkpoint, fetch_checkpoint
from stepctl.lineage.forks import Fork, Forks, forks
from stepctl.lineage.history import ChoiceEntry, Log, RunEntry, history
from stepctl.lineage.identity import differences, require_same
from stepctl.lineage.ledger import by_key, by_trace, ledger_for, runs_of
from stepctl.lineage.manifest import build_manifest, decode_manifest, encode_manifest, entries_of
from stepctl.lineage.overview import Overview, Summary, overview
from stepctl.lineage.prune import clean_leftovers, prune
from stepctl.lineage.state import CheckpointInfo, LineageState, lines_of, read_lineage
from stepctl.lineage.verify import Damage, Report, verify
from stepctl.lineage.view import View, look

__all__ = [
    "CheckpointInfo",
    "ChoiceEntry",
    "CommitResult",
    "Damage",
    "Fork",
    "Forks",
    "LineageState",
    "Log",
    "Overview",
    "Report",
    "RunEntry",
    "Summary",
    "View",
    "build_manifest",
    "by_key",
    "by_trace",
    "check_folder",
    "choose",
    "clean_leftovers",
    "commit",
    "copy_checkpoint",
    "decode_manifest",
    "differences",
    "encode_manifest",
    "entries_of",
    "fetch_checkpoint",
    "forks",
    "history",
    "ledger_for",
    "lines_of",
    "look",
    "overview",
    "prune",
    "read_lineage",
    "require_same",
    "runs_of",
    "verify",
]
