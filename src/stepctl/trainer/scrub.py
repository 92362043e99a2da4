"""No text of an example may reach a log: what libraries say is checked against the trace before it is written."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

WINDOW = 12
"""Characters in a row that, when found in the trace, make a message one that quotes it."""


class Scrubber:
    """Knows the bytes of the examples, in memory only."""

    def __init__(self, data: Sequence[bytes]) -> None:
        text = "\n".join(block.decode("utf-8", errors="replace") for block in data)
        # The same text unescaped: a library sees the decoded string.
        self._texts = (text, text.encode().decode("unicode_escape", errors="replace") if "\\" in text else "")

    def clean(self, message: str) -> str:
        """``message``, or a word that it is withheld because it quotes an example."""
        for i in range(max(1, len(message) - WINDOW + 1)):
            piece = message[i : i + WINDOW]
            if len(piece) == WINDOW and any(piece in text for text in self._texts):
                return "(message withheld: it quotes an example)"
        return message

    def trace(self, error: BaseException) -> str:
        """The frames and the cleaned message of an error, without source values."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"  {f.filename}:{f.lineno} in {f.name}" for f in frames]
        return "\n".join([*lines, f"{type(error).__name__}: {self.clean(str(error))}"])
