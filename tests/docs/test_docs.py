"""What the documents say is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.doubles.project import Project, rows

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_commands_of_the_readme_run(project: Project) -> None:
    for i, day in enumerate(("monday", "tuesday", "wednesday", "thursday", "heldout")):
        project.trace(f"{day}.jsonl", rows(4, 10 * i))
    block = README.split("<!-- checked", 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) >= 8
    for command in commands:
        assert command[0] == "stepctl"
        done = project.run(*command[1:])
        # `init` never writes over the project's own file.
        assert done.returncode == (2 if command[1] == "init" else 0), (command, done.stderr)


def test_the_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", README.split("## A session")[0])):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)`", page, re.M)
    assert len(quoted) > 15
    assert [text for text in quoted if text not in source] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link
