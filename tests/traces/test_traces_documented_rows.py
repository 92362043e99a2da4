"""Every example of a row in the documentation is read by the method it stands under."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stepctl.traces.methods import feedback, preference, sft

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
SECTIONS: dict[str, Any] = {"SFT": sft, "DPO": preference, "KTO": feedback, "Messages": feedback}


def examples(section: str) -> list[dict[str, Any]]:
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [
        json.loads(line) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_documented_rows_are_read(section: str) -> None:
    rows = examples(section)
    assert len(rows) >= 3
    for row in rows:
        shaped = SECTIONS[section].shape(row)
        assert shaped.flaws == []
        assert shaped.ignored == []
        assert f"| {shaped.kind} |" in PAGE.read_text()


def test_documented_words_are_those_that_are_read() -> None:
    page = PAGE.read_text()
    for meant, name in ((True, "desirable"), (False, "undesirable")):
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert re.findall(r"`(\w+|.)`", line.partition("word")[2]) == [
            w for w, is_ in feedback.WORDS.items() if is_ is meant
        ]
