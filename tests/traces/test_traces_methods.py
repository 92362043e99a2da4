"""What holds for every row of DPO and KTO, whatever is in the file."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepctl.traces.judge import judge
from stepctl.traces.render.tokenizer import TextTokenizer
from stepctl.traces.rows import DpoRow, Judgement, KtoRow, Source, Tokens
from stepctl.traces.rules import Rules

FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
METHODS = st.sampled_from(["dpo", "kto"])
LENGTHS = st.integers(2, 60)
MARK = "qqqq"
"""In every text of a row that must not be in a reason."""

SEAMS = st.sampled_from(["is two ", "Answer: ", "T", "e", "plus", "Paris", "wo", "four", "\u0301", "1"])
WORDS = (
    SEAMS
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    | st.sampled_from(["", "a", " b ", "<|im_end|>", " ", "\n"])
)
MARKED = WORDS.map(lambda text: text + MARK)
SCALAR = st.none() | st.booleans() | st.integers(-1, 2) | st.floats(allow_nan=False, allow_infinity=False) | MARKED
ANY = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "role"]), inner, max_size=2),
    max_leaves=5,
)
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer"])


def messages(content: st.SearchStrategy[Any], roles: st.SearchStrategy[Any] = ROLES) -> st.SearchStrategy[Any]:
    return st.lists(st.fixed_dictionaries({"role": roles, "content": content}), max_size=4)


def chaos(content: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    value = content | messages(content) | messages(content | ANY, ROLES | ANY) | ANY
    sides = st.fixed_dictionaries({}, optional={"prompt": value, "chosen": value, "rejected": value})
    label = {"label": ANY, "desirable": ANY}
    answer = st.fixed_dictionaries({}, optional={"prompt": value, "completion": value, **label})
    whole = st.fixed_dictionaries({"messages": value}, optional=label)
    return sides | answer | whole


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


REPLY = WORDS.map(lambda text: [turn("assistant", text)])
PROMPT = st.tuples(messages(WORDS), WORDS).map(lambda parts: [*parts[0], turn("user", parts[1])])
PROMPTS_AND_REPLIES = st.one_of(
    st.tuples(SEAMS, SEAMS, SEAMS), st.tuples(WORDS, WORDS, WORDS), st.tuples(PROMPT | WORDS, REPLY, REPLY)
)


def run(tokenizer: TextTokenizer, rows: list[Any], method: str, max_length: int) -> Judgement:
    lines = ['{"the first line": "tells that it is JSON lines"}', *map(json.dumps, rows)]
    source = Source(name="t.jsonl", data="\n".join(lines).encode())
    return judge([source], Rules(method=method, max_length=max_length), tokenizer)


def first(text: Tokens) -> int:
    return next(i for i, label in enumerate(text.labels) if label != -100)


def consistent(result: Judgement, method: str, max_length: int) -> None:
    kept = {row.line for row in result.rows}
    assert len(kept) == len(result.rows)
    assert not kept & {bad.line for bad in result.bad}
    assert result.tokens == sum(len(text.input_ids) for row in result.rows for text in row.texts)
    for row in result.rows:
        assert isinstance(row, DpoRow if method == "dpo" else KtoRow)
        for text in row.texts:
            assert 2 <= len(text.input_ids) == len(text.labels) <= max_length
            assert first(text) > 0
            assert all(label in (-100, token) for label, token in zip(text.labels, text.input_ids, strict=True))
        if isinstance(row, DpoRow):
            at = first(row.chosen)
            assert at == first(row.rejected)
            assert row.chosen.input_ids[:at] == row.rejected.input_ids[:at]
            assert row.chosen != row.rejected
        if isinstance(row, KtoRow):
            at = first(row.texts[0])
            assert row.labels == [-100] * at + row.input_ids[at:]


@FIXTURES
@given(st.lists(chaos(WORDS), max_size=5), METHODS, LENGTHS)
def test_every_row_is_kept_or_bad_and_nothing_raises(
    chatml: TextTokenizer, rows: list[Any], method: str, max_length: int
) -> None:
    result = run(chatml, rows, method, max_length)
    consistent(result, method, max_length)
    assert len(result.rows) + len({bad.line for bad in result.bad}) == len(rows) + 1


@FIXTURES
@given(st.lists(chaos(MARKED), max_size=5), METHODS, LENGTHS)
def test_no_reason_and_no_warning_has_text_of_a_row(
    chatml: TextTokenizer, rows: list[Any], method: str, max_length: int
) -> None:
    result = run(chatml, rows, method, max_length)
    told = [f"{bad.field} {bad.reason}" for bad in result.bad] + [warning.message for warning in result.warnings]
    assert MARK not in " ".join(told)


def expected(tokenizer: TextTokenizer, prompt: Any, answer: Any) -> tuple[str, str]:
    """What must be masked and what supervised."""
    if isinstance(answer, str):
        end = "" if (prompt + answer).rstrip().endswith(tokenizer.eos_token) else tokenizer.eos_token
        return prompt, answer + end
    turns = [turn("user", prompt)] if isinstance(prompt, str) else prompt
    return tokenizer.render(turns, True), answer[0]["content"] + "<|im_end|>"


def holds(tokenizer: TextTokenizer, text: Tokens, prompt: Any, answer: Any, *, seam: bool) -> None:
    masked, completion = expected(tokenizer, prompt, answer)
    at, end = first(text), max(i for i, label in enumerate(text.labels) if label != -100) + 1
    before = tokenizer.decode(text.input_ids[:at])
    assert -100 not in text.labels[at:end]
    assert tokenizer.decode(text.input_ids[:end]) == masked + completion
    if seam:
        assert masked.startswith(before.rstrip("\ufffd"))
    else:
        assert before == masked


@FIXTURES
@given(PROMPTS_AND_REPLIES)
def test_the_prompt_is_masked_and_the_completions_are_supervised(chatml: TextTokenizer, parts: tuple[Any, ...]) -> None:
    prompt, chosen, rejected = parts
    rows = {"dpo": {"prompt": prompt, "chosen": chosen, "rejected": rejected}}
    rows["kto"] = {"prompt": prompt, "completion": chosen, "label": True}
    for method, row in rows.items():
        result = run(chatml, [row], method, 10_000)
        consistent(result, method, 10_000)
        seam = any(warning.code == "seam" for warning in result.warnings)
        for kept in result.rows:
            for text, answer in zip(kept.texts, (chosen, rejected), strict=False):
                holds(chatml, text, prompt, answer, seam=seam)


@FIXTURES
@given(PROMPT, REPLY, REPLY)
def test_whole_conversations_are_as_with_a_prompt_of_their_own(
    chatml: TextTokenizer, prompt: list[Any], chosen: list[Any], rejected: list[Any]
) -> None:
    apart = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    whole = {"chosen": prompt + chosen, "rejected": prompt + rejected}
    one, two = (run(chatml, [row], "dpo", 10_000).rows for row in (apart, whole))
    assert [row.texts for row in one] == [row.texts for row in two]
    feedback = {"prompt": prompt, "completion": chosen, "label": 0}
    one, two = (
        run(chatml, [row], "kto", 10_000).rows for row in (feedback, {"messages": prompt + chosen, "desirable": False})
    )
    assert [row.texts for row in one] == [row.texts for row in two]
