"""A whole trace judged: what is kept, what is bad, what is cut, what is warned of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepctl.traces.judge as judging
from stepctl.base.errors import UsageError
from stepctl.traces.judge import BATCH, judge
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import Judgement, SftRow, Source
from stepctl.traces.rules import Rules

Judge = Callable[..., Judgement]
Supervised = Callable[[TextTokenizer, SftRow], list[str]]
Chat = Callable[..., dict[str, Any]]

FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)


def codes(result: Judgement) -> list[str]:
    return [warning.code for warning in result.warnings]


def run(tokenizer: TextTokenizer, *files: bytes, max_length: int = 64, train_on: str = "assistant") -> Judgement:
    sources = [Source(name=f"{number}.jsonl", data=data) for number, data in enumerate(files)]
    return judge(sources, Rules(max_length=max_length, train_on=train_on), tokenizer)


def test_each_row_is_taken_by_its_own_shape(
    chatml: TextTokenizer, check: Judge, supervised: Supervised, chat: Chat
) -> None:
    rows = [{"text": "two is two"}, chat("user", "a", "assistant", "b"), {"prompt": "p", "completion": "c"}]
    result = check(chatml, *rows, rows[0] | {"messages": None, "id": 1})
    assert result.bad == []
    assert [row.line for row in result.rows] == [1, 2, 3, 4]
    texts = [supervised(chatml, row) for row in result.rows]
    assert texts[1:3] == [["b<|im_end|>"], ["c<|im_end|>"]]
    assert texts[0] == texts[3]
    assert chatml.decode(result.rows[0].input_ids) == "two is two<|im_end|>"
    assert result.rows[0].labels == [-100, *result.rows[0].input_ids[1:]]


def test_all_bad_rows_are_collected_from_every_stage_in_file_order(
    chatml: TextTokenizer, check: Judge, chat: Chat
) -> None:
    lines: list[object] = [
        {"prompt": "two " * 50, "completion": "b"},
        '{"text": "a"',
        {"text": "fine"},
        "",
        {"text": None},
        chat("user", "<|im_start|>", "assistant", "b"),
        '{"text": "a"} {}',
    ]
    result = check(chatml, *lines, max_length=20)
    assert [row.line for row in result.rows] == [3]
    assert [bad.line for bad in result.bad] == [1, 2, 5, 6, 7]
    assert {bad.file for bad in result.bad} == {"trace.jsonl"}


def test_files_are_one_trace_with_one_digest(chatml: TextTokenizer) -> None:
    files = (b'{"text": "a"}\n{"text": 5}', b'\n{"text": "b"}\n', b"")
    result = run(chatml, *files)
    assert [(row.file, row.line) for row in result.rows] == [("0.jsonl", 1), ("1.jsonl", 2)]
    assert [(bad.file, bad.line) for bad in result.bad] == [("0.jsonl", 2), ("2.jsonl", None)]
    assert result.sha256 == hashlib.sha256(b"".join(files)).hexdigest()


def test_no_files_are_no_rows(chatml: TextTokenizer) -> None:
    assert [bad.reason for bad in run(chatml).bad] == ["the trace has no rows"]


def test_a_prompt_that_leaves_no_room_is_bad_with_both_numbers(chatml: TextTokenizer, check: Judge, chat: Chat) -> None:
    row = chat("user", "z" * 300, "assistant", "b")
    tokens = len(check(chatml, row).rows[0].input_ids)
    prompt = tokens - 3  # the reply is one token, its end another, then the template's newline
    result = check(chatml, row, max_length=128)
    assert [(bad.line, bad.reason) for bad in result.bad] == [
        (1, f"its {prompt} prompt tokens leave no room: raise max_length (128); the whole row has {tokens} tokens")
    ]
    assert check(chatml, row, max_length=prompt).bad
    assert check(chatml, row, max_length=prompt + 1).rows[0].cut == 1


def test_cut_rows_are_kept_and_summed_up(chatml: TextTokenizer, check: Judge) -> None:
    rows = [{"prompt": "z", "completion": "y" * length} for length in (3, 30, 40)]
    whole = check(chatml, *rows)
    assert codes(whole) == []
    result = check(chatml, *rows, max_length=10)
    assert [row.cut for row in result.rows] == [0, 22, 32]
    assert [len(row.input_ids) for row in result.rows] == [5, 10, 10]
    assert result.tokens == 25
    assert result.supervised_tokens == 22 == whole.supervised_tokens - 54
    assert codes(result) == ["cut"]
    message = result.warnings[0].message
    assert "2 rows of 3" in message
    assert "lines 2, 3" in message
    assert "71.1%" in message


def test_only_lost_supervised_tokens_count_as_cut(chatml: TextTokenizer, check: Judge, chat: Chat) -> None:
    row = chat("user", "a", "assistant", "b", "user", "z" * 100)
    short = check(chatml, row, max_length=30)
    assert short.rows[0].cut == 0
    assert codes(short) == []


def test_duplicates_are_counted_by_what_is_trained(chatml: TextTokenizer, check: Judge) -> None:
    result = check(chatml, {"text": "a"}, {"id": 1, "text": "a"}, {"text": "b"}, {"text": "a"})
    assert len(result.rows) == 4
    assert {warning.code: warning.message for warning in result.warnings} == {
        "unknown_columns": "columns not used: `id`",
        "duplicates": "earlier rows are repeated by 2 rows",
    }


def test_unknown_columns_are_named_once_and_unusual_names_are_not(chatml: TextTokenizer, check: Judge) -> None:
    extra = {"meta": {}, "my secret text\n": 1, "o" * 90: 2}
    result = check(chatml, {"text": "a", **extra}, {"text": "b", **extra})
    assert codes(result) == ["unknown_columns"]
    assert "`meta`" in result.warnings[0].message
    assert "secret" not in result.warnings[0].message


def test_more_rows_than_a_batch_keep_their_order(chatml: TextTokenizer, check: Judge, chat: Chat) -> None:
    rows = [{"text": f"{n}"} if n % 3 else chat("user", "a", "assistant", f"{n}") for n in range(BATCH * 2 + 5)]
    result = check(chatml, *rows)
    assert [row.line for row in result.rows] == list(range(1, len(rows) + 1))
    assert all(str(row.line - 1) in chatml.decode(row.input_ids) for row in result.rows)


@pytest.mark.parametrize("change", [{"method": "ppo"}, {"train_on": "everything"}])
def test_unknown_settings_are_usage_errors(chatml: TextTokenizer, change: dict[str, str]) -> None:
    given_settings: dict[str, Any] = {"method": "sft", "train_on": "assistant", **change}
    with pytest.raises(UsageError):
        judge([], Rules(max_length=9, **given_settings), chatml)


def consistent(result: Judgement, max_length: int) -> None:
    kept = {(row.file, row.line) for row in result.rows}
    # Steps are counted from these: never one for a row that does not train.
    assert result.kept == len(result.rows)
    assert result.total == result.kept + result.dropped + len({(b.file, b.line) for b in result.bad if b.line})
    assert len(kept) == len(result.rows)
    assert not kept & {(bad.file, bad.line) for bad in result.bad}
    for row in result.rows:
        assert 2 <= len(row.input_ids) == len(row.labels) <= max_length
        assert row.labels[0] == -100
        assert row.supervised > 0
        assert all(label in (-100, token) for label, token in zip(row.labels, row.input_ids, strict=True))


@FIXTURES
@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3), st.integers(2, 12))
def test_no_bytes_raise(chatml: TextTokenizer, files: list[bytes], max_length: int) -> None:
    result = run(chatml, *files, max_length=max_length)
    assert result.rows or result.bad
    consistent(result, max_length)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a", " b ", "<|im_end|>", "é\u0301"]
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]), "content": WORDS | ANY}
)
ROW = st.one_of(
    ANY,
    st.fixed_dictionaries({"messages": st.lists(MESSAGE | ANY, max_size=5) | ANY}),
    st.fixed_dictionaries({"messages": st.lists(MESSAGE, min_size=1, max_size=6)}),
    st.fixed_dictionaries({"prompt": WORDS | ANY, "completion": WORDS | ANY}),
    st.fixed_dictionaries({"text": WORDS | ANY}, optional={"messages": ANY, "label": ANY, "id": ANY}),
)


@FIXTURES
@given(st.lists(ROW, min_size=1, max_size=6), st.integers(2, 40), st.sampled_from(["assistant", "all"]))
def test_every_row_is_kept_or_bad_and_nothing_raises(
    chatml: TextTokenizer, rows: list[Any], max_length: int, train_on: str
) -> None:
    lines = ['{"text": "the first line tells that it is JSON lines"}', *map(json.dumps, rows)]
    data = "\n".join(lines).encode()
    result = run(chatml, data, max_length=max_length, train_on=train_on)
    consistent(result, max_length)
    assert len(result.rows) + len({bad.line for bad in result.bad}) == len(lines)


@FIXTURES
@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), WORDS), min_size=1, max_size=6))
def test_the_supervised_text_is_the_replies(
    chatml: TextTokenizer, supervised: Supervised, turns: list[tuple[str, str]]
) -> None:
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    for kept in run(chatml, json.dumps(row).encode(), max_length=10_000).rows:
        replies = [f"{content}<|im_end|>" for role, content in turns if role == "assistant"]
        assert supervised(chatml, kept) == replies


def test_what_is_left_out_is_not_counted(chatml: TextTokenizer, check: Judge) -> None:
    long = {"prompt": "q", "completion": "z" * 99}
    result = check(chatml, long, long, {"prompt": "q", "completion": "a"}, max_length=20, on_long="drop")
    assert (result.kept, result.dropped, result.duplicates, result.same_prompt) == (1, 2, 0, 0)
    assert [each.line for each in result.single] == [1, 2]


def test_bad_rows_that_are_left_out_are_told(chatml: TextTokenizer, check: Judge) -> None:
    result = check(chatml, {"text": ""}, {"text": "a"}, {"text": 5}, {"text": 5, "label": 1}, skip_bad_rows=True)
    assert (result.kept, result.skipped, result.refusals) == (1, 3, [])
    warning = result.warnings[0]
    assert (warning.code, warning.line) == ("skipped_rows", None)
    assert warning.message.startswith("3 rows left out as bad: trace.jsonl, line 1: text: is empty")
    assert "line 3: text: is a number" in warning.message and "line 4: label: belongs to" in warning.message


def test_rows_that_train_have_a_digest_of_their_own(chatml: TextTokenizer, check: Judge) -> None:
    rows = [{"prompt": "q", "completion": "z" * (20 * (n % 2) + 1)} for n in range(4)]
    short, again = (check(chatml, *rows, max_length=9, on_long="drop") for _ in range(2))
    other = check(chatml, *rows[1:], rows[0], max_length=9, on_long="drop")
    assert (short.kept, other.kept) == (2, 2)
    assert short.rows_sha256 == again.rows_sha256 != other.rows_sha256
    assert check(chatml, *rows).rows_sha256 not in (short.rows_sha256, other.rows_sha256)


def test_long_rows_are_tokenized_in_smaller_batches(
    chatml: TextTokenizer, check: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": "a b " * (n % 7 + 1)} for n in range(50)]
    whole = check(chatml, *rows)
    sizes: list[int] = []
    real = chatml.encode_batch

    def counted(texts: list[str], add_special_tokens: bool) -> Any:
        sizes.append(len(texts))
        return real(texts, add_special_tokens)

    monkeypatch.setattr(chatml, "encode_batch", counted)
    monkeypatch.setattr(judging, "BATCH_CHARACTERS", 40)
    assert check(chatml, *rows) == whole
    assert max(sizes) <= 10


def test_trailing_context_makes_no_row_too_long(chatml: TextTokenizer, check: Judge, chat: Chat) -> None:
    row = chat("user", "a", "assistant", "b", "user", "z" * 100)
    for on_long in ("refuse", "drop"):
        assert check(chatml, row, max_length=30, on_long=on_long).kept == 1
    assert check(chatml, row, max_length=5, on_long="refuse").bad[0].reason.endswith('and on_long is "refuse"')


def test_a_completion_that_nothing_predicts_is_refused(chatml: TextTokenizer, check: Judge) -> None:
    """Prompt and completion are one token, the first."""
    result = check(chatml, {"prompt": "P", "completion": "aris"})
    assert ["one token, the first" in bad.reason for bad in result.bad] == [True]
