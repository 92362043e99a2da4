"""What a person is shown of a row is the decoded row, split where supervision changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import Judgement
from stepctl.traces.shown import spans


def test_spans_are_the_row(
    chatml: TextTokenizer, check: Callable[..., Judgement], chat: Callable[..., dict[str, Any]]
) -> None:
    (row,) = check(chatml, chat("user", "é😀", "assistant", "two 😀\n", "user", "b", "assistant", "c")).rows
    assert spans(chatml, row.input_ids, row.labels) == [
        ("<|im_start|>user\né😀<|im_end|>\n<|im_start|>assistant\n", False),
        ("two 😀\n<|im_end|>", True),
        ("\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n", False),
        ("c<|im_end|>", True),
        ("\n", False),
    ]


def test_a_character_of_two_stretches_is_shown_once(chatml: TextTokenizer) -> None:
    ids = chatml.encode("a😀b", add_special_tokens=False).ids
    assert len(ids) == 6
    for cut in range(7):
        shown = spans(chatml, ids, [-100] * cut + ids[cut:])
        assert "".join(text for text, _ in shown) == "a😀b"
    assert spans(chatml, ids, [-100, -100, -100, *ids[3:]]) == [("a", False), ("😀b", True)]
    assert spans(chatml, [], []) == []


def test_the_origin_of_the_template_is_told(make_folder: Callable[..., Path]) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folders = [
        make_folder("F", name="a"),
        make_folder(None, config={"chat_template": named}, name="b"),
        make_folder(None, name="c"),
        make_folder(None, special=["</s>"], eos="</s>", name="d"),
    ]
    assert [load_tokenizer(folder).origin for folder in folders] == [
        f"chat_template.jinja of {folders[0]}",
        f"tokenizer_config.json of {folders[1]}",
        "the default (ChatML)",
        "the default (`role: content` blocks)",
    ]
    both = load_tokenizer(folders[1])
    turn = [{"role": "user", "content": "a"}]
    assert (both.render(turn, False), both.render(turn, False, '[{"name": "f"}]')) == ("D", "T")
    (folders[0] / "additional_chat_templates").mkdir()
    (folders[0] / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools[0].name }}")
    assert load_tokenizer(folders[0]).render(turn, False, '[{"name": "f"}]') == "f"
