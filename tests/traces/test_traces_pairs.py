"""DPO rows judged: both sides answer one prompt, which is masked, and something is left to prefer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepctl.base.errors import UsageError
from stepctl.traces.read import RawRow
from stepctl.traces.render.assemble import assemble
from stepctl.traces.render.mask import Masked, RowRefused
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import DpoRow, Judgement, SftRow, Tokens
from stepctl.traces.shapes.examples import Completion, Pair

MakeFolder = Callable[..., Path]
Judge = Callable[..., Judgement]
Supervised = Callable[[TextTokenizer, Tokens | SftRow], list[str]]

END = "<|im_end|>"


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def says(*contents: str) -> list[dict[str, str]]:
    return [turn("assistant", content) for content in contents]


USER = turn("user", "is it two?")


def dpo(result: Judgement) -> list[DpoRow]:
    assert result.bad == []
    assert all(isinstance(row, DpoRow) for row in result.rows)
    return [row for row in result.rows if isinstance(row, DpoRow)]


def first(tokens: Tokens) -> int:
    return next(i for i, label in enumerate(tokens.labels) if label != -100)


def refused(result: Judgement) -> tuple[str | None, str]:
    assert result.rows == []
    (bad,) = result.bad
    return bad.field, bad.reason


def test_case_strings_without_a_prompt(chatml: TextTokenizer, check: Judge, supervised: Supervised) -> None:
    rows: list[dict[str, Any]] = [
        {
            "chosen": "\n\nHuman: Capital of France?\n\nAssistant: Paris.",
            "rejected": "\n\nHuman: Capital of France?\n\nAssistant: Rome.",
        },
        {"chosen": "The cat sat", "rejected": "The cat slept"},
        {"prompt": "Capital of France?", "chosen": says("Paris."), "rejected": says("Rome.")},
        {
            "input": {"messages": [turn("user", "Capital?")]},
            "preferred_output": says("Paris"),
            "non_preferred_output": says("Rome"),
        },
        {"prompt": "2+2?", "chosen": "4", "rejected": "5", "score_chosen": 2, "score_rejected": 7},
    ]
    result = check(chatml, *rows, method="dpo")
    assert [(bad.line, bad.field) for bad in result.bad] == [(1, "prompt"), (2, "prompt")]
    chat, openai, text = result.rows
    assert [supervised(chatml, side) for side in chat.texts] == [[f"Paris.{END}"], [f"Rome.{END}"]]
    assert [supervised(chatml, side) for side in openai.texts] == [[f"Paris{END}"], [f"Rome{END}"]]
    assert chatml.decode(chat.texts[0].input_ids).startswith("<|im_start|>user\nCapital of France?<|im_end|>")
    assert [supervised(chatml, side) for side in text.texts] == [[f"4{END}"], [f"5{END}"]]
    warnings = {warning.code: warning.message for warning in result.warnings}
    assert warnings.keys() == {"unknown_columns", "reversed_scores"}
    assert "1 row, line 5" in warnings["reversed_scores"]
    assert "`score_chosen`, `score_rejected`" in warnings["unknown_columns"]


def test_replies_of_the_prompt_are_not_supervised(chatml: TextTokenizer, check: Judge, supervised: Supervised) -> None:
    prompt = [turn("system", "be brief"), USER, *says("yes"), turn("tool", "22"), USER]
    chosen, rejected = [*says("it is"), USER, *says("indeed")], says("no")
    apart = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    whole = {"chosen": prompt + chosen, "rejected": prompt + rejected}
    one, same = dpo(check(chatml, apart, whole, method="dpo"))
    assert supervised(chatml, one.chosen) == [f"it is{END}", f"indeed{END}"]
    assert supervised(chatml, one.rejected) == [f"no{END}"]
    assert (one.chosen, one.rejected) == (same.chosen, same.rejected)
    assert chatml.decode(one.rejected.input_ids) == chatml.render(prompt + rejected, False)
    assert one.tokens == len(one.chosen.input_ids) + len(one.rejected.input_ids)
    assert one.supervised == one.chosen.supervised + one.rejected.supervised


def test_each_side_is_what_sft_makes_of_it(make_folder: MakeFolder, check: Judge) -> None:
    special = ["<s>", "<end>", "<eos>"]
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
    folder = make_folder(template, special=special, bos="<s>", eos="<eos>", post="<s> $A <eos>")
    tokenizer = load_tokenizer(folder)
    texts = {"prompt": "two", "chosen": " é😀", "rejected": "four<eos>\n"}
    chats = {"prompt": "two", "chosen": says("yes"), "rejected": says("no")}
    for pair in (texts, chats):
        (row,) = dpo(check(tokenizer, pair, method="dpo"))
        for side, tokens in (("chosen", row.chosen), ("rejected", row.rejected)):
            alone = {"prompt": "two", "completion": pair[side]}
            if pair is chats:
                alone = {"messages": [turn("user", "two"), *pair[side]]}
            assert check(tokenizer, alone).rows[0].texts == (tokens,)


def test_a_merged_seam_begins_both_sides_at_one_token(
    chatml: TextTokenizer, check: Judge, supervised: Supervised
) -> None:
    pair = {"prompt": "Answer: ", "chosen": "Paris", "rejected": "44"}
    result = check(chatml, pair, {**pair, "prompt": "Answer:"}, method="dpo")
    merged, plain = dpo(result)
    assert supervised(chatml, merged.chosen) == [f" Paris{END}"]
    assert supervised(chatml, merged.rejected) == [f" 44{END}"]
    assert first(merged.chosen) == first(merged.rejected)
    assert supervised(chatml, plain.rejected) == [f"44{END}"]
    assert [(warning.code, warning.line) for warning in result.warnings] == [("seam", 1)]
    assert "both are supervised" in result.warnings[0].message


def test_a_merged_seam_of_a_chat_is_seen(make_folder: MakeFolder, check: Judge, supervised: Supervised) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = load_tokenizer(make_folder(template))
    result = check(tokenizer, {"prompt": "a", "chosen": says("Paris"), "rejected": says("44")}, method="dpo")
    (row,) = dpo(result)
    assert [supervised(tokenizer, side) for side in row.texts] == [[f" Paris{END}"], [f" 44{END}"]]
    assert [warning.code for warning in result.warnings] == ["seam"]


def test_sides_begin_where_their_tokens_part() -> None:
    chosen = Masked([1, 2, 3, 7], [-100, -100, -100, 7], crosses_seam=False, bare=False)
    rejected = Masked([1, 23, 8], [-100, -100, 8], crosses_seam=False, bare=False)
    raw, pair = RawRow("t", 1, {}), Pair(Completion("abc", "x"), Completion("abc", "y"))
    row, crosses = assemble(raw, pair, [chosen, rejected], 9)
    assert [text.labels for text in row.texts] == [[-100, 2, 3, 7], [-100, 23, 8]]
    assert crosses
    apart = replace(rejected, ids=[9, 23, 8])
    with pytest.raises(RowRefused, match="make the prompt longer"):
        assemble(raw, pair, [chosen, apart], 9)


def test_a_completion_that_nothing_stands_before_is_refused(chatml: TextTokenizer, check: Judge) -> None:
    merged = {"prompt": "T", "chosen": "wo", "rejected": "o"}
    field, reason = refused(check(chatml, merged, method="dpo"))
    assert field is None
    assert "make the prompt longer" in reason
    assert dpo(check(chatml, {**merged, "prompt": "?T"}, method="dpo"))


def test_a_prompt_that_is_written_differently_on_the_sides_is_refused(make_folder: MakeFolder, check: Judge) -> None:
    template = (
        "{{ messages | length }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    tokenizer = load_tokenizer(make_folder(template))
    row = {"prompt": "a", "chosen": [*says("secret"), USER, *says("c")], "rejected": says("d")}
    assert "writes the prompt differently" in refused(check(tokenizer, row, method="dpo"))[1]
    assert dpo(check(tokenizer, {**row, "chosen": says("c")}, method="dpo"))


def test_thinking_marks_before_one_side_alone_are_of_the_completion(
    make_folder: MakeFolder, check: Judge, supervised: Supervised
) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think>\n{% endif %}"
    )
    tokenizer = load_tokenizer(make_folder(template, plain=["<think>", "</think>"]))
    row = {"prompt": "a", "chosen": says("<think>\nwhy</think>b"), "rejected": says("c")}
    (kept,) = dpo(check(tokenizer, row, method="dpo"))
    assert supervised(tokenizer, kept.chosen) == [f"<think>\nwhy</think>b{END}"]
    assert supervised(tokenizer, kept.rejected) == [f"c{END}"]


def test_a_reply_of_the_prompt_may_lose_its_reasoning_and_nothing_else(make_folder: MakeFolder, check: Judge) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content if m.role != 'assistant' or loop.last "
        "else m.content.split('</think>')[-1].split('CUT')[0] }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    prompt = [turn("user", "is it?"), *says("<think>why</think>because"), USER]
    row = {"prompt": prompt, "chosen": says("yes"), "rejected": says("no")}
    tokenizer = load_tokenizer(make_folder(template))
    (kept,) = dpo(check(tokenizer, row, method="dpo"))
    assert "[assistant]because<|im_end|>" in tokenizer.decode(kept.chosen.input_ids)
    cutting = load_tokenizer(make_folder(template.replace("CUT", "cause"), name="cutting"))
    field, reason = refused(check(cutting, row, method="dpo"))
    assert field == "prompt[1].content"
    assert "leaves out" in reason


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": "<|im_end|>", "chosen": says("b"), "rejected": says("c")}, "prompt"),
        ({"prompt": [USER], "chosen": says("b"), "rejected": says("<|im_end|>")}, "rejected[0].content"),
        ({"chosen": [USER, *says("<|im_end|>")], "rejected": [USER, *says("c")]}, "chosen[1].content"),
    ],
)
def test_a_control_token_that_is_not_kept_is_named_by_its_column(
    make_folder: MakeFolder, check: Judge, row: object, field: str
) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | replace('<|im_end|>', 'x') }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    found, reason = refused(check(load_tokenizer(make_folder(template)), row, method="dpo"))
    assert (found, "<|im_end|>" in reason) == (field, True)


def test_a_template_that_refuses_is_named_by_the_side(make_folder: MakeFolder, check: Judge) -> None:
    tokenizer = load_tokenizer(make_folder("{{ raise_exception('not for me') }}"))
    row = {"prompt": "a", "chosen": says("secret"), "rejected": says("c")}
    assert refused(check(tokenizer, row, method="dpo")) == (
        "chosen",
        "the chat template refuses this conversation: not for me",
    )


def test_sides_that_become_the_same_tokens_are_refused(make_folder: MakeFolder, check: Judge) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<|im_end|>{% endfor %}"
    tokenizer = load_tokenizer(make_folder(template))
    trimmed = {"prompt": "a", "chosen": says("secret"), "rejected": says(" secret\n")}
    assert "become the same tokens" in refused(check(tokenizer, trimmed, method="dpo"))[1]
    goes_on = {"prompt": "a", "chosen": [*says("b"), USER], "rejected": says("b")}
    assert "become the same tokens" in refused(check(tokenizer, goes_on, method="dpo"))[1]


def test_sides_that_are_the_same_after_the_cut_are_refused(chatml: TextTokenizer, check: Judge) -> None:
    row = {"prompt": "z", "chosen": "y" * 20 + "a", "rejected": "y" * 20 + "b"}
    assert refused(check(chatml, row, method="dpo", max_length=21)) == (
        None,
        "`chosen` and `rejected` are the same once they are cut: raise max_length (21)",
    )
    (kept,) = dpo(check(chatml, row, method="dpo", max_length=22))
    assert kept.cut == 2
    unlabelled = {"prompt": "z", "chosen": [*says("y"), turn("user", "a" * 90)], "rejected": [*says("y"), USER]}
    assert "same" in refused(check(chatml, unlabelled, method="dpo", max_length=30))[1]


def test_a_prompt_that_leaves_no_room_is_bad_with_all_numbers(chatml: TextTokenizer, check: Judge) -> None:
    row = {"prompt": "z" * 30, "chosen": "y", "rejected": "x" * 50}
    assert refused(check(chatml, row, method="dpo", max_length=30)) == (
        None,
        "its 30 prompt tokens leave no room: raise max_length (30); the whole row has 81 tokens",
    )
    (kept,) = dpo(check(chatml, row, method="dpo", max_length=31))
    assert (kept.chosen.supervised, kept.rejected.supervised, kept.cut) == (1, 1, 51)


def test_what_either_side_loses_counts_as_cut(chatml: TextTokenizer, check: Judge) -> None:
    rows = [{"prompt": "z", "chosen": "y" * a, "rejected": "x" * b} for a, b in ((3, 4), (30, 4), (4, 40))]
    result = check(chatml, *rows, method="dpo", max_length=10)
    assert [row.cut for row in dpo(result)] == [0, 22, 32]
    (warning,) = result.warnings
    assert warning.code == "cut"
    assert "max_length (10) cuts 2 rows of 3, lines 2, 3" in warning.message
    lost, kept = 54, result.supervised_tokens
    assert f"{lost / (lost + kept):.1%}" in warning.message
    assert result.counts == {}


def test_what_the_template_does_is_told_once(make_folder: MakeFolder, check: Judge) -> None:
    rows = [{"prompt": "a", "chosen": says("b"), "rejected": says(f"c{n}")} for n in range(2)]
    bare = load_tokenizer(make_folder(None, special=["</s>"], eos="</s>"))
    assert [warning.code for warning in check(bare, *rows, method="dpo").warnings] == ["default_template"]
    template = (
        "{% if messages[0].role != 'system' %}[system]Be good.<|im_end|>{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    )
    result = check(load_tokenizer(make_folder(template, name="injects")), *rows, method="dpo")
    assert [(warning.code, "2 rows" in warning.message) for warning in result.warnings] == [("injected_text", True)]


def test_duplicates_are_pairs_and_a_prompt_may_be_shared(chatml: TextTokenizer, check: Judge) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    swapped = {**row, "chosen": "c", "rejected": "b"}
    assert check(chatml, row, {**row, "rejected": "d"}, method="dpo").warnings == []
    assert [warning.code for warning in check(chatml, row, swapped, method="dpo").warnings] == ["contradiction"]
    assert [warning.code for warning in check(chatml, row, row, method="dpo").warnings] == ["duplicates"]


def test_reversed_scores_are_told_once_with_lines(chatml: TextTokenizer, check: Judge) -> None:
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": f"c{n}", "score_chosen": n % 2, "score_rejected": 0.5}
        for n in range(6)
    ]
    messages = [w.message for w in check(chatml, *rows, method="dpo").warnings if w.code == "reversed_scores"]
    assert len(messages) == 1
    assert "3 rows, lines 1, 3, 5:" in messages[0]


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_train_on_all_is_for_sft_alone(chatml: TextTokenizer, check: Judge, method: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(chatml, method=method, train_on="all")
    assert "for sft only" in caught.value.message
    assert "train_on" in caught.value.next
