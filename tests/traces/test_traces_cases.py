"""Troubles that people met with traces, each in small, and what must become of them: what is bad and said, what is
left, and what the model learns of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepctl.traces.judge import survey
from stepctl.traces.one import Shown, show_row
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer
from stepctl.traces.rows import Judgement, Source
from stepctl.traces.rules import Rules

MakeFolder = Callable[..., Path]
END = "<|im_end|>"
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def template(name: str) -> str:
    """A real template, from the installed TRL."""
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture
def models(make_folder: MakeFolder) -> dict[str, TextTokenizer]:
    folders = {
        "chatml": make_folder(name="chatml"),
        "none": make_folder(None, eos="<|endoftext|>", name="none"),
        "qwen3": make_folder(template("qwen3"), plain=MARKS, name="qwen3"),
        "qwen2.5": make_folder(template("qwen2_5"), plain=MARKS[:2], name="qwen25"),
        "llama3": make_folder(
            template("llama3"),
            special=LLAMA,
            bos="<|begin_of_text|>",
            eos="<|eot_id|>",
            post="<|begin_of_text|> $A",
            name="llama3",
        ),
        "gemma": make_folder(
            template("gemma"),
            special=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            bos="<bos>",
            eos="<eos>",
            post="<bos> $A",
            name="gemma",
        ),
    }
    return {name: load_tokenizer(folder) for name, folder in folders.items()}


def source(data: bytes | Sequence[Any]) -> Source:
    if not isinstance(data, bytes):
        lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in data)
        data = "\n".join(lines).encode()
    return Source(name="t", data=data)


def check(tokenizer: TextTokenizer, data: bytes | Sequence[Any], **rules: Any) -> Judgement:
    return survey([source(data)], Rules(**rules), tokenizer)


def bad(judged: Judgement) -> dict[int | None, str]:
    """What is said of each bad line."""
    said: dict[int | None, str] = {}
    for each in judged.bad:
        said[each.line] = f"{said.get(each.line, '')} {each.field}: {each.reason}"
    return said


def show(tokenizer: TextTokenizer, data: bytes | Sequence[Any], line: int, **rules: Any) -> Shown:
    shown = show_row(source(data), line, Rules(**rules), tokenizer)
    assert isinstance(shown, Shown), shown
    return shown


def learned(tokenizer: TextTokenizer, data: bytes | Sequence[Any], line: int, **rules: Any) -> list[str]:
    """The supervised texts of a row with one text, without an empty thought in front."""
    (text,) = show(tokenizer, data, line, **rules).texts.values()
    found = [span.text.strip() for span in text.spans if span.supervised]
    return [each.removeprefix("<think>\n\n</think>\n\n") for each in found]


def chat(*turns: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns], **more}


def ask(reply: Any, question: Any = "a", **more: Any) -> dict[str, Any]:
    return chat(("user", question), ("assistant", reply), **more)


def test_byte_order_mark_crlf_and_blank_lines(models: dict[str, TextTokenizer]) -> None:
    lines = [json.dumps(ask(word)) for word in ("one", "two", "three")]
    data = "\ufeff".encode() + "\r\n\r\n".join(lines).encode() + b"\r\n"
    judged = check(models["chatml"], data)
    assert (judged.kept, judged.total, judged.bad) == (3, 3, [])
    plain = "\n".join(lines).encode()
    for line, plain_line, word in ((1, 1, "one"), (3, 2, "two"), (5, 3, "three")):
        assert learned(models["chatml"], data, line) == [word + END]
        assert show(models["chatml"], data, line).texts == show(models["chatml"], plain, plain_line).texts


def test_commas_and_rows_that_are_glued(models: dict[str, TextTokenizer]) -> None:
    row = json.dumps(ask("b"))
    data = [f"{row},", row, row + row, row[:-9], row]
    said = bad(check(models["chatml"], data))
    assert list(said) == [1, 3, 4]
    assert "comma" in said[1] and "more than one value" in said[3] and "ends too early" in said[4]
    skipped = check(models["chatml"], data, skip_bad_rows=True)
    assert (skipped.kept, skipped.skipped, skipped.refusals) == (2, 3, [])


def test_what_is_no_utf8_text(models: dict[str, TextTokenizer]) -> None:
    text = json.dumps(ask("oui"))
    latin = (text + "\n").encode() + json.dumps(ask("été"), ensure_ascii=False).encode("latin-1")
    assert "0xE9" in bad(check(models["chatml"], latin))[2]
    wide = check(models["chatml"], text.encode("utf-16"))
    assert "UTF-16" in bad(wide)[None]
    assert wide.refusals == check(models["chatml"], text.encode("utf-16"), skip_bad_rows=True).refusals
    packed = check(models["chatml"], gzip.compress(text.encode()))
    assert (packed.kept, packed.files[0].format) == (1, "JSON lines, gzip-compressed")
    table = check(models["chatml"], b"prompt,completion\na,b\nc,d\n")
    assert len(table.bad) == 1 and "CSV" in bad(table)[None]


def test_rows_of_several_shapes(models: dict[str, TextTokenizer]) -> None:
    data = [ask("b"), ask("d"), {"prompt": "p", "chosen": "x", "rejected": "y"}, {"text": "plain", "messages": None}]
    judged = check(models["chatml"], data)
    assert list(bad(judged)) == [3] and "DPO" in bad(judged)[3]
    assert judged.kinds == {"messages": 2, "preference": 1, "text": 1}
    assert learned(models["chatml"], data, 4) == [f"plain{END}"]
    both = bad(check(models["chatml"], [ask("b", text="c")]))
    assert "`messages`" in both[1] and "`text`" in both[1]


@pytest.mark.parametrize(("model", "end"), [("qwen3", END), ("llama3", "<|eot_id|>"), ("chatml", END)])
def test_contents_in_parts(models: dict[str, TextTokenizer], model: str, end: str) -> None:
    def parts(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    data = [
        ask(parts("Yo"), parts("Hi")),
        ask("Yo", "Hi"),
        ask(parts("one ", "two")),
        ask("b", [{"type": "image_url", "image_url": {"url": "u"}}]),
        ask([{"type": "refusal", "refusal": "no"}]),
    ]
    said = bad(check(models[model], data))
    assert list(said) == [4, 5]
    assert "image_url" in said[4] and "refusal" in said[5]
    assert show(models[model], data, 1).texts == show(models[model], data, 2).texts
    assert learned(models[model], data, 1) == [f"Yo{end}"]
    assert learned(models[model], data, 3) == [f"one two{end}"]


def test_alpaca_columns(models: dict[str, TextTokenizer]) -> None:
    data = [
        {"instruction": "Name a colour.", "input": "", "output": "Blue"},
        {"instruction": "Count the words.", "input": "a b c", "output": "3"},
        {"instruction": "Say hi.", "input": ""},
    ]
    said = bad(check(models["chatml"], data))
    assert list(said) == [3] and "output" in said[3]
    assert learned(models["chatml"], data, 1) == [f"Blue{END}"]
    asked = [show(models["chatml"], data, line).texts[""].text for line in (1, 2)]
    assert "user\nName a colour.<|im_end|>" in asked[0]
    assert "user\nCount the words.\n\na b c<|im_end|>" in asked[1]


def test_weights_of_messages(models: dict[str, TextTokenizer]) -> None:
    def weighed(*weights: Any) -> dict[str, Any]:
        row = chat(
            *(turn for n in range(len(weights)) for turn in (("user", "q"), ("assistant", ("wrong", "right")[n])))
        )
        for message, weight in zip(row["messages"][1::2], weights, strict=True):
            message["weight"] = weight
        return row

    on_user = ask("fine")
    on_user["messages"][0]["weight"] = 1
    data = [weighed(0, 1), weighed(0), weighed(0.5), on_user, weighed(1.0)]
    judged = check(models["chatml"], data)
    assert list(bad(judged)) == [2, 3]
    assert "supervised" in bad(judged)[2] and "weight" in bad(judged)[3]
    assert [(each.code, each.line) for each in judged.warnings] == [("weight_ignored", 4)]
    assert learned(models["chatml"], data, 1) == [f"right{END}"]
    assert "wrong" in show(models["chatml"], data, 1).texts[""].text
    assert learned(models["chatml"], data, 4) == [f"fine{END}"]


CONVERSATIONS = [
    ask("b"),
    chat(("system", "be brief"), ("user", "a"), ("assistant", "b")),
    chat(("user", "a"), ("user", "b"), ("assistant", "c")),
    chat(("assistant", "welcome"), ("user", "a"), ("assistant", "b")),
    chat(("user", "a"), ("assistant", "b"), ("assistant", "c")),
    chat(("developer", "be brief"), ("user", "a"), ("assistant", "b")),
]


def test_a_template_that_refuses_conversations(models: dict[str, TextTokenizer]) -> None:
    said = bad(check(models["gemma"], CONVERSATIONS))
    assert list(said) == [2, 3, 4, 5, 6]
    assert "System role not supported" in said[2]
    assert all("must alternate" in said[line] for line in (3, 4, 5))
    assert learned(models["gemma"], CONVERSATIONS, 1) == ["b<end_of_turn>"]


@pytest.mark.parametrize("model", ["qwen2.5", "qwen3"])
def test_a_template_that_drops_a_role_in_silence(models: dict[str, TextTokenizer], model: str) -> None:
    assert list(bad(check(models[model], CONVERSATIONS))) == [6]
    assert learned(models[model], CONVERSATIONS, 5) == [f"b{END}", f"c{END}"]
    assert learned(models[model], CONVERSATIONS, 4) == [f"welcome{END}", f"b{END}"]


def test_a_model_without_a_template(models: dict[str, TextTokenizer]) -> None:
    judged = check(models["none"], [*CONVERSATIONS, {"text": "plain text"}])
    assert judged.bad == []
    assert [each.code for each in judged.warnings if each.code == "default_template"] == ["default_template"]
    assert "be brief" in show(models["none"], CONVERSATIONS, 2).texts[""].text
    assert learned(models["none"], CONVERSATIONS, 5) == [f"b{END}", f"c{END}"]


def test_a_completion_that_the_cut_takes(models: dict[str, TextTokenizer]) -> None:
    data = [
        ask("ok"),
        {"prompt": "z" * 300, "completion": "short"},
        {"prompt": "q", "completion": "y" * 300},
    ]
    judged = check(models["chatml"], data, max_length=128)
    assert list(bad(judged)) == [2]
    assert "128" in bad(judged)[2] and "306" in bad(judged)[2]
    skipped = check(models["chatml"], data, max_length=128, skip_bad_rows=True)
    assert (skipped.kept, skipped.truncated, [each.line for each in skipped.single]) == (2, 1, [3])
    assert END not in show(models["chatml"], data, 3, max_length=128).texts[""].text


def test_preferences_without_a_prompt_and_in_other_forms(models: dict[str, TextTokenizer]) -> None:
    openai = {
        "input": {"messages": [{"role": "user", "content": "Capital?"}]},
        "preferred_output": [{"role": "assistant", "content": "Paris"}],
        "non_preferred_output": [{"role": "assistant", "content": "Rome"}],
    }
    mixed = {
        "prompt": "Capital of France?",
        "chosen": [{"role": "assistant", "content": "Paris."}],
        "rejected": [{"role": "assistant", "content": "Rome."}],
    }
    data = [{"chosen": "The cat sat", "rejected": "The cat slept"}, mixed, openai]
    assert list(bad(check(models["chatml"], data, method="dpo"))) == [1]
    assert "prompt" in bad(check(models["chatml"], data, method="dpo"))[1]
    for line, end in ((2, "."), (3, "")):
        texts = show(models["chatml"], data, line, method="dpo").texts
        learned = {side: [span.text for span in text.spans if span.supervised] for side, text in texts.items()}
        assert learned == {"chosen": [f"Paris{end}{END}"], "rejected": [f"Rome{end}{END}"]}


def test_values_stay_the_strings_that_they_are(models: dict[str, TextTokenizer]) -> None:
    data = [
        ask("42", id=1),
        ask("true", [{"type": "text", "text": "Is it?"}], id="r2"),
        ask('{"a": 1}', id="003", metadata=["x"]),
    ]
    judged = check(models["chatml"], data)
    assert (judged.kept, judged.bad) == (3, [])
    for line, text in ((1, "42"), (2, "true"), (3, '{"a": 1}')):
        assert learned(models["chatml"], data, line) == [text + END]


def test_json_inside_strings(models: dict[str, TextTokenizer]) -> None:
    function = {"name": "get_weather", "description": "Weather by city", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    data = [
        {"messages": messages, "tools": json.dumps(tools)},
        {"messages": messages, "tools": tools},
        {"messages": json.dumps(ask("hello")["messages"])},
        {"messages": messages, "tools": "[not json"},
    ]
    said = bad(check(models["qwen2.5"], data))
    assert list(said) == [4] and "tools" in said[4]
    wanted = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>'
    assert learned(models["qwen2.5"], data, 1) == [wanted]
    assert show(models["qwen2.5"], data, 1).texts == show(models["qwen2.5"], data, 2).texts
    assert "Weather by city" in show(models["qwen2.5"], data, 1).texts[""].text
    assert learned(models["qwen2.5"], data, 3) == [f"hello{END}"]


def test_where_prompt_and_completion_meet(models: dict[str, TextTokenizer]) -> None:
    data = [
        {"prompt": "Answer: ", "completion": "Paris"},
        {"prompt": "Answer:", "completion": " Paris"},
        {"prompt": "x.", "completion": "two(x)"},
        {"prompt": "a", "completion": "  \n"},
    ]
    judged = check(models["chatml"], data)
    assert list(bad(judged)) == [4]
    assert [learned(models["chatml"], data, line)[0] for line in (1, 2)] == [f"Paris{END}"] * 2
    assert learned(models["chatml"], data, 3) == [f"two(x){END}"]
    assert [each.line for each in judged.warnings if each.code == "seam"] == [1]
    for line in (1, 2, 3):
        row = data[line - 1]
        assert show(models["chatml"], data, line).texts[""].text == row["prompt"] + row["completion"] + END
