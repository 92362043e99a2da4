"""Write what is generated from the code, or check with --check that it has not drifted (exit 1 with a diff)."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from stepctl.config.describe import example_toml, settings_page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.command_reference import commands_page  # noqa: E402
from scripts.lineage_reference import lineage_page  # noqa: E402
from scripts.report_reference import report_page  # noqa: E402

GENERATED: list[tuple[str, Callable[[], str]]] = [
    ("stepctl.toml.example", example_toml),
    ("docs/settings.md", settings_page),
    ("docs/commands.md", commands_page),
    ("docs/train-json.md", report_page),
    ("docs/lineage-json.md", lineage_page),
]
"""Path relative to the repository, and the function that returns its content."""


def drift(root: Path) -> str:
    """The unified diff from the files under ``root`` to what they should be; empty when they agree."""
    diffs: list[str] = []
    for name, content in GENERATED:
        path = root / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        diffs += difflib.unified_diff(old.splitlines(True), content().splitlines(True), name, f"{name} (generated)")
    return "".join(diffs)


def write(root: Path) -> None:
    """Write every generated file under ``root``."""
    for name, content in GENERATED:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content(), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: generate_docs.py [--check]", file=sys.stderr)
        return 2
    if not arguments:
        write(ROOT)
        return 0
    if diff := drift(ROOT):
        print(f"{diff}generated files have drifted: run python scripts/generate_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
