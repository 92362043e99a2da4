"""The columns of a row: which shape they have, which belong to another method, which would change what it means.

A column that is null counts as absent when the row has another shape: tools fill columns up so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepctl.traces.formats.values import kind, printable
from stepctl.traces.shapes.examples import Example, Flaw, Note, Shaped, Thinking
from stepctl.traces.shapes.inner import NotJson, read_json, write_json

MESSAGES = "messages"
STRINGS = "prompt and completion"
TEXT = "text"
PREFERENCE = "preference"
SHAREGPT = "ShareGPT"
ALPACA = "Alpaca"
OPENAI_PREFERENCE = "OpenAI preference"
_MEDIA = "is not supported: only text is trained; leave the row out"
_CHANGES = {
    "functions": 'is an older form: write `tools`, a list of {"type": "function", "function": {...}}',
    "weight": "is not supported for a whole row: remove the column, or leave the row out",
    "chat_template_kwargs": "is not supported: remove the column",
    **dict.fromkeys(("images", "image", "videos", "video", "audios", "audio"), _MEDIA),
}
_KINDS = {
    "preferred_output": OPENAI_PREFERENCE,
    "non_preferred_output": OPENAI_PREFERENCE,
    "conversations": SHAREGPT,
    "conversation": SHAREGPT,
    "instruction": ALPACA,
    "output": ALPACA,
    "chosen": PREFERENCE,
    "rejected": PREFERENCE,
    "messages": MESSAGES,
    "prompt": STRINGS,
    "completion": STRINGS,
    "text": TEXT,
}
CONVERSATIONS = ("conversations", "conversation")


@dataclass(slots=True)
class Found:
    """What is found while one row is read."""

    thinking: Thinking = "keep"
    flaws: list[Flaw] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def flaw(self, field: str | None, reason: str) -> None:
        """Something is wrong."""
        self.flaws.append(Flaw(field, reason))

    def note(self, code: str, field: str, reason: str) -> None:
        """Something should be known."""
        self.notes.append(Note(code, field, reason))

    def unused(self, row: Mapping[str, Any], used: Collection[str]) -> None:
        """Remember the columns that are given and are not ``used``."""
        for key, value in row.items():
            if key not in used and value is not None and key not in _CHANGES:
                self.ignored.append(key)

    def shaped(self, example: Example | None, kind: str) -> Shaped:
        """The row: ``example``, unless something is wrong."""
        if self.flaws:
            return Shaped(None, list(dict.fromkeys(self.flaws)), self.ignored, kind, self.notes)
        return Shaped(example, [], self.ignored, kind, self.notes)


def given(row: Mapping[str, Any]) -> list[str]:
    """The columns of a row that are not null."""
    return [key for key, value in row.items() if value is not None]


def kind_of(row: Mapping[str, Any]) -> str:
    """The shape that a row's columns tell, of whatever method; empty when they tell none."""
    return next((kind for column, kind in _KINDS.items() if row.get(column) is not None), "")


def foreign(row: Mapping[str, Any], others: Mapping[str, str], method: str, found: Found) -> bool:
    """Whether a row belongs to another method: training it by this one would be something else.

    Args:
        row: the row.
        others: columns that do not belong to ``method``, and what they belong to.
        method: as a person writes it.
        found: where the flaws go.
    """
    if row.keys().isdisjoint(others):
        return False
    for key in given(row):
        if key in others:
            found.flaw(key, f"belongs to {others[key]}, not to {method}: leave the row out, or remove the column")
    return bool(found.flaws)


def refuse_changes(row: Mapping[str, Any], found: Found) -> None:
    """Refuse columns that would change what a row means; passing over them would train something else."""
    if not row.keys().isdisjoint(_CHANGES):
        for key, value in row.items():
            if key in _CHANGES and not (value is None or (isinstance(value, list | str | dict) and not value)):
                found.flaw(key, _CHANGES[key])


def pick(row: Mapping[str, Any], columns: Mapping[str, str], shapes: str, found: Found) -> str | None:
    """Which shape a row has; None, and a flaw, when it has none or could be taken in more than one way.

    Args:
        row: the row.
        columns: each column of each shape, and the shape's name.
        shapes: all shapes, as a person reads them.
        found: where the flaw goes.
    """
    if len(row) == 1:
        (key,) = row
        if key in columns:
            return columns[key]
    present = [key for key in row if key in columns and row[key] is not None]
    names = present or [key for key in row if key in columns]
    kinds = {columns[key] for key in names}
    if not kinds:
        no_shape(row, shapes, found)
        return None
    if present and (len(kinds) > 1 or set(CONVERSATIONS) <= set(present)):
        several = ", ".join(f"`{key}`" for key in names)
        found.flaw(None, f"has several shapes at once: {several}; keep one of {shapes}")
        return None
    return next(kind for kind in columns.values() if kind in kinds)


def no_shape(row: Mapping[str, Any], shapes: str, found: Found) -> None:
    """Refuse a row that has none of ``shapes``."""
    found.flaw(None, f"has none of {shapes}; it has {listed(row)}")


def listed(row: Mapping[str, Any]) -> str:
    """The names of a row's columns."""
    return ", ".join(f"`{printable(key)}`" for key in list(row)[:8]) or "nothing"


def text_flaws(field: str, value: Any, *, hint: str = "", what: str = "a string") -> list[Flaw]:
    """What is wrong with a text that must have words."""
    if not isinstance(value, str):
        return [Flaw(field, f"is {kind(value)}, not {what}{hint}")]
    if not value or value.isspace():
        is_what = "only white space" if value else "empty"
        return [Flaw(field, f"is {is_what}{hint or ': write its words, or leave the row out'}")]
    return []


def system_text(row: Mapping[str, Any], found: Found) -> str:
    """The column ``system``; empty when there is none."""
    value = row.get("system")
    if value is None:
        return ""
    if not isinstance(value, str):
        found.flaw("system", f"is {kind(value)}, not a string")
        return ""
    return "" if value.isspace() else value


def tools_text(field: str, value: Any, found: Found) -> str:
    """A list of tools, or JSON text of one, as JSON text; empty when there are none.

    The text of a list that is given as text and of the same list given as such are the same.
    """
    if value is None or value == [] or (isinstance(value, str) and not value.strip()):
        return ""
    try:
        tools = read_json(value) if isinstance(value, str) else value
        if tools is None or tools == []:
            return ""
        if not isinstance(tools, list):
            inside = "text of " if isinstance(value, str) else ""
            found.flaw(field, f"is {inside}{kind(tools)}, not a list of objects: put brackets around one tool")
            return ""
        wrong = [number for number, tool in enumerate(tools) if not isinstance(tool, dict)]
        for number in wrong:
            found.flaw(f"{field}[{number}]", f"is {kind(tools[number])}, not an object that describes a tool")
        return "" if wrong else write_json(tools)
    except NotJson as error:
        found.flaw(field, f"{error.reason}: write a list of tools")
        return ""


def no_chat_columns(row: Mapping[str, Any], what: str, found: Found, *, system: bool) -> None:
    """Refuse columns that only a conversation has a place for, beside strings.

    Args:
        row: the row.
        what: the strings, as a person reads them.
        found: where the flaws go.
        system: whether a system text is refused too (else it is a column like any other).
    """
    tools, text = row.get("tools"), row.get("system")
    if not (tools is None or tools in ([], "", "[]")):
        found.flaw("tools", f"needs a conversation, but {what} without a chat template: use `messages`")
    if system and isinstance(text, str) and text.strip():
        found.flaw("system", f"needs a conversation, but {what} without a chat template: use `messages`")
