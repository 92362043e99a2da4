"""Names and paths inside a bucket: ``<lineage>/{checkpoints,choices,claims}``. Knows no storage."""

from __future__ import annotations

import re

from stepctl.lineage.records import ROOT, checkpoint_name

MANIFEST = "manifest.json"
LEDGER = "ledger.jsonl"
_CHECKPOINT = re.compile(r"(\d{8,})-([A-Za-z0-9][A-Za-z0-9._-]{0,63})")
_CHOICE = re.compile(r"(\d{6,})(-[0-9a-f]+)?\.json")


def checkpoints_at(lineage: str) -> str:
    """The folder of all checkpoints."""
    return f"{lineage}/checkpoints"


def checkpoint_at(lineage: str, checkpoint: str) -> str:
    """The folder of one checkpoint."""
    return f"{lineage}/checkpoints/{checkpoint}"


def manifest_at(lineage: str, checkpoint: str) -> str:
    """The file that makes a checkpoint complete."""
    return f"{lineage}/checkpoints/{checkpoint}/{MANIFEST}"


def claims_at(lineage: str) -> str:
    """The folder of the claims."""
    return f"{lineage}/claims"


def claim_at(lineage: str, key: str) -> str:
    """The claim with ``key`` (see :func:`claim_key`)."""
    return f"{lineage}/claims/{key}.json"


def claim_key(at: str, choice: int | None) -> str:
    """What is claimed: to be the child of ``at``; where a choice starts the walk, anew for each choice."""
    return at if choice is None else f"{at}@{choice:06d}"


def choices_at(lineage: str) -> str:
    """The folder of the choices."""
    return f"{lineage}/choices"


def choice_at(lineage: str, number: int, mark: str = "") -> str:
    """The choice with ``number``, from 1; where storage cannot refuse to overwrite, ``mark`` tells two apart."""
    return f"{lineage}/choices/{number:06d}{'-' if mark else ''}{mark}.json"


def choice_number(name: str) -> int | None:
    """The number of a choice's file name, None for another file."""
    found = _CHOICE.fullmatch(name)
    return int(found[1]) if found else None


def parse_checkpoint(name: str) -> tuple[int, str] | None:
    """The step and run of a checkpoint's name, None when it is not one."""
    found = _CHECKPOINT.fullmatch(name)
    if found is None or checkpoint_name(int(found[1]), found[2]) != name:
        return None
    return int(found[1]), found[2]


def is_root(name: str) -> bool:
    """Whether ``name`` is a root: the start of a chain, not a checkpoint."""
    return name == ROOT or name.startswith(f"{ROOT}-")
