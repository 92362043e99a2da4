"""Every reason for which a row is refused is on the page about traces, with its mend."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "src/stepctl/traces"
TELLS = ("flaw", "_flaw", "Flaw", "RowRefused", "ConversationRefused", "BadRow")
FILES = sorted(path.relative_to(ROOM).as_posix() for path in ROOM.rglob("*.py"))


def literal(node: ast.AST) -> str:
    """The longest literal stretch of a string, f-string or choice of strings."""
    parts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return max((part.strip(" :;,()`'\"") for part in parts), key=len, default="")


def reasons(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in TELLS:
                given = [*node.args[1:], *(each.value for each in node.keywords if each.arg == "reason")]
                yield from (literal(each) for each in given)
        elif isinstance(node, ast.Assign) and any(getattr(each, "id", "") == "reason" for each in node.targets):
            yield literal(node.value)


def told(file: str) -> list[str]:
    found = reasons(ast.parse((ROOM / file).read_text(encoding="utf-8")))
    return sorted({reason for reason in found if " " in reason})


def test_reasons_are_found() -> None:
    assert sum(len(told(file)) for file in FILES) > 80


@pytest.mark.parametrize("file", [file for file in FILES if told(file)])
def test_every_reason_is_explained(file: str) -> None:
    page = " ".join((ROOT / "docs/traces.md").read_text(encoding="utf-8").split())
    assert [reason for reason in told(file) if " ".join(reason.split()) not in page] == []
