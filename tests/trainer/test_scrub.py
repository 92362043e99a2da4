"""Messages that quote an example are withheld."""

from __future__ import annotations

import pytest

from stepctl.trainer.scrub import Scrubber

DATA = b'{"text": "the quick brown fox \\u00e9t\\u00e9 jumps\\nover the lazy dog"}\n'


@pytest.mark.parametrize(
    "message",
    ["bad value: the quick brown fox", "over the lazy dog", "fox \u00e9t\u00e9 jumps", "x" * 50 + "quick brown fox"],
)
def test_quotes_are_withheld(message: str) -> None:
    assert "withheld" in Scrubber([DATA]).clean(message)


def test_other_messages_are_kept() -> None:
    assert Scrubber([DATA]).clean("CUDA out of memory: tried 2 GB") == "CUDA out of memory: tried 2 GB"


def test_a_trace_has_frames_and_no_source() -> None:
    try:
        raise ValueError("the quick brown fox")
    except ValueError as error:
        text = Scrubber([DATA]).trace(error)
    assert "ValueError" in text
    assert "test_scrub.py" in text
    assert "quick" not in text
