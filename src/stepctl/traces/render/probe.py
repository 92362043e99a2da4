"""Stand-ins for the words of a conversation, and what renderings of them show.

A message's stand-in has a mark in place of its content, of its thinking and of the arguments of each call. Where the
marks come out of a template is where the words go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stepctl.traces.shapes.examples import Message

MARK = "qzxj7kvw"
CONTENT, THINKING, KEY, VALUE, ARGUMENTS = "c", "t", "a", "b", "j"


class Found(NamedTuple):
    """A mark in a rendering: of which message, which of its words, which of its calls, and where."""

    number: int
    kind: str
    call: int
    start: int
    end: int


def blank(text: str) -> bool:
    """Whether a text has no words."""
    return not text or text.isspace()


def mark_not_in(text: str) -> str:
    """The beginning of marks that ``text`` does not have."""
    return longer_than(MARK, (text,))


def longer_than(word: str, texts: Iterable[str]) -> str:
    """``word`` with as many z behind it as no text has."""
    behind = re.compile(re.escape(word) + "(z*)")
    found = [len(match.group(1)) for text in texts for match in behind.finditer(text)]
    return word + "z" * (max(found) + 1) if found else word


def _mark(base: str, number: int, kind: str, call: int = 0) -> str:
    return f"{base}{number:06d}{kind}{call:04d}x"


def stand_in(message: Message, number: int, base: str = MARK) -> Message:
    """``message`` with marks for words. Names and ids of calls stay: what follows may repeat them."""
    calls = tuple(
        call._replace(arguments=json.dumps({_mark(base, number, KEY, n): _mark(base, number, VALUE, n)}))
        for n, call in enumerate(message.calls)
    )
    return message._replace(
        content=message.content if blank(message.content) else _mark(base, number, CONTENT),
        thinking="" if blank(message.thinking) else _mark(base, number, THINKING),
        calls=calls,
    )


def find_marks(text: str, base: str = MARK) -> list[Found]:
    """All marks in a rendering, in order."""
    return [
        Found(int(found[1]), found[2], int(found[3]), found.start(), found.end())
        for found in re.finditer(rf"{base}(\d{{6}})([{CONTENT}{THINKING}{KEY}{VALUE}])(\d{{4}})x", text)
    ]


def whole_arguments(text: str, marks: Sequence[Found]) -> list[Found] | None:
    """The marks, those of each call's arguments as one (their JSON text); None unless they are written as JSON."""
    merged: list[Found] = []
    for mark in marks:
        if mark.kind == VALUE and merged and merged[-1].kind == KEY and merged[-1].call == mark.call:
            key = merged.pop()
            whole = json.dumps({text[key.start : key.end]: text[mark.start : mark.end]})
            start = text.find(whole, max(key.start - 2, 0), key.start + len(whole))
            if start < 0:
                return None
            merged.append(key._replace(kind=ARGUMENTS, start=start, end=start + len(whole)))
        else:
            merged.append(mark)
    return None if any(mark.kind in (KEY, VALUE) for mark in merged) else merged


class Reach(NamedTuple):
    """A supervised span by the words it holds: ``back`` before the first, ``forward`` behind the last (characters)."""

    number: int
    first: int
    back: int
    last: int
    forward: int


class Skeleton:
    """What a template writes around the words of every conversation of one make.

    Args:
        text: a rendering of stand-ins.
        marks: where its words are.
        spans: number of the message, start and end of each supervised span of it.
    """

    def __init__(self, text: str, marks: Sequence[Found], spans: Sequence[tuple[int, int, int]]) -> None:
        self._marks = list(marks)
        edges = [0, *(place for mark in marks for place in (mark.start, mark.end)), len(text)]
        self._pieces = [text[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        self._plain = all(mark.kind == CONTENT for mark in marks)
        self._numbers = [mark.number for mark in marks]
        self._reaches: list[Reach] = []
        for number, start, end in spans:
            own = [i for i, mark in enumerate(marks) if mark.number == number]
            first, last = own[0], own[-1]
            self._reaches.append(Reach(number, first, marks[first].start - start, last, end - marks[last].end))

    def fit(self, messages: Sequence[Message], text: str) -> list[tuple[int, int, int]] | None:
        """The supervised spans of ``text``; None unless it is these pieces with the messages' words between them."""
        if self._plain:
            words = [messages[number].content for number in self._numbers]
        else:
            words = [_words(messages[mark.number], mark) for mark in self._marks]
        places = self._as_they_are(words, text) or self._trimmed(words, text)
        if places is None:
            return None
        return [(n, places[i][0] - back, places[j][1] + ahead) for n, i, back, j, ahead in self._reaches]

    def _as_they_are(self, words: Sequence[str], text: str) -> list[tuple[int, int]] | None:
        parts = [""] * (2 * len(words) + 1)
        parts[::2], parts[1::2] = self._pieces, words
        if "".join(parts) != text:
            return None
        at, places = 0, []
        for piece, word in zip(self._pieces, words, strict=False):
            at += len(piece)
            places.append((at, at := at + len(word)))
        return places

    def _trimmed(self, words: Sequence[str], text: str) -> list[tuple[int, int]] | None:
        if not text.startswith(self._pieces[0]):
            return None
        at, places = len(self._pieces[0]), []
        for word, piece in zip(words, self._pieces[1:], strict=True):
            end = next(
                (
                    at + len(trimmed)
                    for trimmed in _trims(word)
                    if text.startswith(trimmed, at) and text.startswith(piece, at + len(trimmed))
                ),
                None,
            )
            if end is None:
                return None
            places.append((at, end))
            at = end + len(piece)
        return places if at == len(text) else None


def _words(message: Message, mark: Found) -> str:
    if mark.kind == CONTENT:
        return message.content
    return message.thinking if mark.kind == THINKING else as_json(message.calls[mark.call].arguments)


def as_json(arguments: str) -> str:
    """A call's arguments as ``tojson`` writes them."""
    return json.dumps(json.loads(arguments), ensure_ascii=False)


def _trims(word: str) -> Iterator[str]:
    yield word
    yield word.strip()
    yield word.strip("\n")
    yield word.lstrip()
    yield word.lstrip("\n")
    yield word.rstrip()


def common_start(first: str, second: str) -> int:
    """How many characters two texts have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(first: str, second: str) -> int:
    """How many characters two texts have in common at their end."""
    return common_start(first[::-1], second[::-1])
