"""What the rows of a trace are, and what becomes of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from stepctl.traces.shapes.examples import Thinking

OnLong = Literal["truncate", "refuse", "drop"]


class Rules(Struct, frozen=True, kw_only=True):
    """How a trace is judged.

    Attributes:
        method: ``sft``, ``dpo`` or ``kto``: what shapes rows may have, and which rows are made of them.
        max_length: tokens of a row (of each side of a pair) that are kept.
        train_on: ``assistant`` supervises replies, completions and texts; ``all``, for ``sft`` alone, every token but
            the first.
        on_long: what becomes of a longer row: cut to ``max_length``, bad, or left out.
        thinking: whether the reasoning that stands beside replies is trained.
        parse_special_tokens: the control tokens that texts spell are control tokens, and not text.
        skip_bad_rows: bad rows are left out, and do not refuse the trace.
    """

    method: str = "sft"
    max_length: int = 1024
    train_on: str = "assistant"
    on_long: OnLong = "truncate"
    thinking: Thinking = "keep"
    parse_special_tokens: bool = False
    skip_bad_rows: bool = False

    @property
    def everything(self) -> bool:
        """Whether every token is supervised."""
        return self.train_on == "all"

    @classmethod
    def of(cls, method: str, train: Any) -> Rules:
        """From a method and train settings, which name the others as they are named here."""
        names = (name for name in cls.__struct_fields__ if name != "method")
        return cls(method=method, **{name: getattr(train, name) for name in names})
