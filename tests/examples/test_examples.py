"""The demo's examples: what the held-out loss is measured on must not be trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DAYS = ("day1.jsonl", "day2.jsonl", "day3.jsonl")
G = 4


def pairs(name: str) -> list[tuple[str, str]]:
    """Question and answer of each row."""
    rows = [json.loads(line) for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        assert list(row) == ["messages"]
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    return [(row["messages"][0]["content"], row["messages"][1]["content"]) for row in rows]


def test_no_question_is_asked_twice_in_any_file() -> None:
    questions = [question.casefold() for name in (*DAYS, "heldout.jsonl") for question, _ in pairs(name)]
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize("day", DAYS)
def test_a_day_teaches_every_held_out_fact_and_no_other(day: str) -> None:
    assert {answer for _, answer in pairs(day)} == {answer for _, answer in pairs("heldout.jsonl")}


@pytest.mark.parametrize("day", DAYS)
def test_a_day_is_whole_steps_and_no_step_has_a_fact_twice(day: str) -> None:
    answers = [answer for _, answer in pairs(day)]
    assert len(answers) % G == 0
    for first in range(0, len(answers), G):
        assert len(set(answers[first : first + G])) == G
