"""KTO rows judged: the prompt, then the completion to the end, and how many are wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import Judgement, KtoRow

MakeFolder = Callable[..., Path]
Judge = Callable[..., Judgement]
Supervised = Callable[[TextTokenizer, KtoRow], list[str]]
Chat = Callable[..., dict[str, Any]]

END = "<|im_end|>"


def kto(result: Judgement) -> list[KtoRow]:
    assert all(isinstance(row, KtoRow) for row in result.rows)
    return [row for row in result.rows if isinstance(row, KtoRow)]


def split(row: KtoRow) -> tuple[list[int], list[int]]:
    """As the trainer takes it apart; nothing but the completion is in the second part."""
    at = next(i for i, label in enumerate(row.labels) if label != -100)
    assert at > 0
    assert row.labels == [-100] * at + row.input_ids[at:]
    return row.input_ids[:at], row.input_ids[at:]


def test_case_spellings_of_labels(chatml: TextTokenizer, check: Judge, supervised: Supervised) -> None:
    labels = [True, False, 1, 0, "true", "false", "yes", None, 0.5]
    rows: list[dict[str, Any]] = [
        {"prompt": f"q{n}", "completion": f"a{n}", "label": label} for n, label in enumerate(labels, start=1)
    ]
    rows.append({"prompt": "q10", "completion": "a10", "label": True, "desirable": False})
    rows.append({"prompt": "q11", "completion": "a11", "desirable": False})
    result = check(chatml, *rows, method="kto")
    assert [(bad.line, bad.field) for bad in result.bad] == [(n, "label") for n in range(8, 11)]
    reasons = {bad.line: bad.reason for bad in result.bad}
    assert "is null" in reasons[8]
    assert "is a number" in reasons[9]
    assert "`label` and `desirable`" in reasons[10]
    assert [(row.line, row.desirable) for row in kto(result)] == [
        (1, True),
        (2, False),
        (3, True),
        (4, False),
        (5, True),
        (6, False),
        (7, True),
        (11, False),
    ]
    assert [supervised(chatml, row) for row in kto(result)][-1] == [f"a11{END}"]
    assert result.counts == {"desirable": 4, "undesirable": 4}
    assert result.warnings == []


def test_case_two_names_of_the_label(chatml: TextTokenizer, check: Judge) -> None:
    rows = [
        {"prompt": "q1", "completion": "a1", "label": False},
        {"prompt": "q1", "completion": "a1", "desirable": False},
        {"prompt": "q2", "completion": "a2", "label": True},
    ]
    result = check(chatml, *rows, method="kto")
    one, two, _ = kto(result)
    assert (one.input_ids, one.labels, one.desirable) == (two.input_ids, two.labels, False)
    assert [warning.code for warning in result.warnings] == ["duplicates"]


TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
LINES = TURNS.replace("{% endfor", "\n{% endfor")
THINKS = LINES.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}",
)


@pytest.mark.parametrize(
    ("template", "end", "thinks"),
    [(LINES, "", ""), (TURNS, "<|endoftext|>", ""), (THINKS, "", "<think>\n\n</think>\n\n")],
    ids=["a newline", "an end of text", "thinks in the last turn"],
)
def test_nothing_follows_the_completion(
    make_folder: MakeFolder, check: Judge, supervised: Supervised, chat: Chat, template: str, end: str, thinks: str
) -> None:
    close = f"{{{{ '[assistant]' if add_generation_prompt else '{end}' }}}}"
    tokenizer = load_tokenizer(make_folder(template + close))
    turns = ("user", "a", "assistant", "no", "user", "b", "assistant", "yes")
    apart = {"prompt": chat(*turns[:6])["messages"], "completion": chat(*turns[6:])["messages"]}
    result = check(tokenizer, chat(*turns) | {"label": 1}, apart | {"label": 1}, method="kto")
    assert result.bad == []
    whole, same = kto(result)
    prompt, completion = split(whole)
    assert tokenizer.decode(prompt) == tokenizer.render(apart["prompt"], True)
    assert tokenizer.decode(completion) == f"{thinks}yes{END}"
    assert whole.input_ids == same.input_ids
    assert supervised(tokenizer, whole) == [f"{thinks}yes{END}"]


def test_texts_end_with_one_end_of_text(make_folder: MakeFolder, check: Judge) -> None:
    folder = make_folder(special=["<s>", "<eos>"], bos="<s>", eos="<eos>", post="<s> $A <eos>")
    tokenizer = load_tokenizer(folder)
    rows = [
        {"prompt": "two", "completion": " é😀", "label": 0},
        {"prompt": "<s>two", "completion": " four<eos>\n", "label": 0},
    ]
    parts = [split(row) for row in kto(check(tokenizer, *rows, method="kto"))]
    assert [[tokenizer.decode(part) for part in both] for both in parts] == [
        ["<s>two", " é😀<eos>"],
        ["<s>two", " four<eos>\n"],
    ]


def test_a_merged_seam_is_told_and_refused_where_nothing_stands_before_it(chatml: TextTokenizer, check: Judge) -> None:
    rows = [{"prompt": "Answer: ", "completion": "Paris", "label": 1}, {"prompt": "T", "completion": "wo", "label": 0}]
    result = check(chatml, *rows, method="kto")
    assert [chatml.decode(part) for part in split(kto(result)[0])] == ["Answer:", f" Paris{END}"]
    assert ("seam", 1) in [(warning.code, warning.line) for warning in result.warnings]
    assert [(bad.line, "make the prompt longer" in bad.reason) for bad in result.bad] == [(2, True)]


def test_a_merged_seam_of_a_chat_is_told(make_folder: MakeFolder, check: Judge, chat: Chat) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = load_tokenizer(make_folder(template))
    result = check(
        tokenizer, *(chat("user", f"a{n}", "assistant", "Paris") | {"label": n} for n in (0, 1)), method="kto"
    )
    assert [tokenizer.decode(part) for part in split(kto(result)[0])] == [
        "user: a0<|im_end|>assistant:",
        f" Paris{END}",
    ]
    assert [(warning.code, warning.line) for warning in result.warnings] == [("seam", 1), ("seam", 2)]


def test_cuts_are_of_the_completion(chatml: TextTokenizer, check: Judge) -> None:
    rows = [{"prompt": "z" * 5, "completion": "y" * size, "label": size % 2} for size in (3, 30)]
    result = check(chatml, *rows, method="kto", max_length=10)
    assert [(row.cut, len(row.input_ids)) for row in kto(result)] == [(0, 9), (26, 10)]
    # The rest is kept: behind another row's prompt there may be room for it.
    (_, whole), (_, short) = (kto(check(chatml, *rows, method="kto", max_length=n)) for n in (100, 10))
    assert short.rest == whole.input_ids[10:]
    assert (len(short.rest), whole.rest) == (26, [])
    assert [warning.code for warning in result.warnings] == ["cut"]
    refused = check(chatml, *rows, method="kto", max_length=5)
    assert [bad.line for bad in refused.bad] == [1, 2]
    assert refused.bad[0].reason == (
        "its 5 prompt tokens leave no room: raise max_length (5); the whole row has 9 tokens"
    )
    assert refused.counts == {"desirable": 0, "undesirable": 0}
    assert refused.warnings == []


@pytest.mark.parametrize(("label", "words"), [(True, "every row is desirable"), (False, "every row is undesirable")])
def test_one_kind_of_label_is_warned_of(chatml: TextTokenizer, check: Judge, label: bool, words: str) -> None:
    row = {"prompt": "a", "completion": "b", "label": label}
    result = check(chatml, row, {**row, "prompt": "c"}, method="kto")
    assert [warning.code for warning in result.warnings] == ["one_label"]
    assert words in result.warnings[0].message
    assert sorted(result.counts.values()) == [0, 2]
    assert check(chatml, row, {**row, "prompt": "c", "label": not label}, method="kto").warnings == []


def test_both_labels_of_one_answer_are_told(chatml: TextTokenizer, check: Judge) -> None:
    row = {"prompt": "a", "completion": "b", "label": True}
    result = check(chatml, row, {**row, "label": False}, {**row, "completion": "c"}, method="kto")
    assert [(warning.code, warning.line) for warning in result.warnings] == [("contradiction", None)]
    assert "1 row, line 2, say" in result.warnings[0].message
    assert [(warning.code, warning.line) for warning in result.single] == [("contradiction", 2)]
    assert (result.duplicates, result.same_prompt) == (0, 1)


def test_a_dropped_prompt_turn_is_refused_by_its_column(make_folder: MakeFolder, check: Judge, chat: Chat) -> None:
    template = "{% for m in messages if m.role != 'developer' %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    prompt = chat("developer", "secret", "user", "b")["messages"]
    row = {"prompt": prompt, "completion": chat("assistant", "c")["messages"], "label": True}
    (bad,) = check(load_tokenizer(make_folder(template)), row, method="kto").bad
    assert bad.field == "prompt[0].content"
    assert "leaves out" in bad.reason
