"""What judging a trace yields."""

from __future__ import annotations

from msgspec import Struct


class Source(Struct, frozen=True, kw_only=True):
    """One trace file: its name as given (``-`` for stdin) and its bytes."""

    name: str
    data: bytes


class Tokens(Struct, frozen=True, kw_only=True):
    """One tokenized text.

    ``labels`` has the length of ``input_ids``: the id where the token is supervised, else -100; its first is always
    -100, since no position predicts it.
    """

    input_ids: list[int]
    labels: list[int]

    @property
    def supervised(self) -> int:
        """Number of supervised tokens."""
        return len(self.labels) - self.labels.count(-100)


class SftRow(Struct, frozen=True, kw_only=True):
    """One example of supervised fine-tuning, cut to ``max_length``.

    ``input_ids`` and ``labels`` as in :class:`Tokens`. ``cut`` counts supervised tokens lost to ``max_length``.
    """

    file: str
    line: int
    input_ids: list[int]
    labels: list[int]
    cut: int = 0

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """All that the model reads of it."""
        return (Tokens(input_ids=self.input_ids, labels=self.labels),)

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.input_ids) for text in self.texts)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens of all texts."""
        return sum(text.supervised for text in self.texts)


class DpoRow(Struct, frozen=True, kw_only=True):
    """One preference: two completions of one prompt, each with it and cut to ``max_length``.

    Both sides have the same tokens before their first supervised one. ``cut`` counts supervised tokens lost on both.
    """

    file: str
    line: int
    chosen: Tokens
    rejected: Tokens
    cut: int = 0

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """All that the model reads of it."""
        return (self.chosen, self.rejected)

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.input_ids) for text in self.texts)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens of all texts."""
        return sum(text.supervised for text in self.texts)


class KtoRow(Struct, frozen=True, kw_only=True):
    """One completion with its prompt, cut to ``max_length``, and whether it is desirable.

    All tokens from the first supervised one on are supervised: they are the completion, those before it the prompt.
    ``rest`` are the ``cut`` tokens of the completion: behind a shorter prompt (the KL term) there is room for more.
    """

    file: str
    line: int
    input_ids: list[int]
    labels: list[int]
    desirable: bool
    cut: int = 0
    rest: list[int] = []

    @property
    def texts(self) -> tuple[Tokens, ...]:
        """All that the model reads of it, but for the completions of other rows (the KL term)."""
        return (Tokens(input_ids=self.input_ids, labels=self.labels),)

    @property
    def tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(len(text.input_ids) for text in self.texts)

    @property
    def supervised(self) -> int:
        """Number of supervised tokens of all texts."""
        return sum(text.supervised for text in self.texts)


Row = SftRow | DpoRow | KtoRow


class BadRow(Struct, frozen=True, kw_only=True):
    """A row that cannot be trained. ``line`` is None for the file as a whole. ``reason`` has no text of the row."""

    file: str
    line: int | None
    reason: str
    field: str | None = None


class RowWarning(Struct, frozen=True, kw_only=True):
    """Something a person should know; ``line`` is None when it concerns all rows."""

    code: str
    message: str
    file: str | None = None
    line: int | None = None


class Judgement(Struct, frozen=True, kw_only=True):
    """Every row, judged. ``sha256`` is over the concatenated bytes of the sources; ``tokens`` counts after the cut.

    ``counts`` has the rows of each label (``desirable``, ``undesirable``) for KTO, and nothing for other methods.
    """

    rows: list[Row]
    bad: list[BadRow]
    warnings: list[RowWarning]
    sha256: str
    tokens: int
    supervised_tokens: int
    counts: dict[str, int] = {}
