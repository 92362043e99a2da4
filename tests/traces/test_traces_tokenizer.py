"""Loading a tokenizer's folder, rendering, and what a template's errors may say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest

from stepctl.base.errors import UsageError
from stepctl.traces.render.probe import longer_than
from stepctl.traces.render.template import RenderRefused
from stepctl.traces.render.tokenizer import TextTokenizer, load_tokenizer

MakeFolder = Callable[..., Path]
ASK = [{"role": "user", "content": "secret words"}]


def test_a_folder_without_a_tokenizer_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        load_tokenizer(tmp_path)
    assert "tokenizer.json" in told.value.message
    assert "save_pretrained" in told.value.next


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 5}'])
def test_a_broken_tokenizer_is_a_usage_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_eos_is_a_usage_error(make_folder: MakeFolder) -> None:
    with pytest.raises(UsageError, match="eos_token"):
        load_tokenizer(make_folder(config={"eos_token": None}))
    with pytest.raises(UsageError, match="eos_token"):
        load_tokenizer(make_folder(eos="<not there>", name="other"))


def test_recorded_truncation_and_padding_are_off(make_folder: MakeFolder) -> None:
    folder = make_folder()
    data = json.loads((folder / "tokenizer.json").read_text())
    data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    data["padding"] = pad | {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = load_tokenizer(folder)
    encoded = tokenizer.encode("zq zq zq zq zq zq", add_special_tokens=False)
    assert tokenizer.decode(encoded.ids) == "zq zq zq zq zq zq"


def test_offsets_cover_the_space_before_a_word(make_folder: MakeFolder) -> None:
    tokenizer = load_tokenizer(make_folder(trim=True))
    offsets = tokenizer.encode("two Paris", add_special_tokens=False).offsets
    assert [end for _, end in offsets[:-1]] == [start for start, _ in offsets[1:]]


def test_special_tokens_map_fills_in_and_added_tokens_decoder_wins(make_folder: MakeFolder) -> None:
    folder = make_folder(config={"eos_token": None})
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    assert load_tokenizer(folder).eos_token == "<|endoftext|>"
    folder = make_folder(config={"added_tokens_decoder": {}}, name="other")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    assert load_tokenizer(folder).eos_token == "<|im_end|>"


def test_the_template_is_the_file_then_the_config_then_none(make_folder: MakeFolder) -> None:
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    assert load_tokenizer(make_folder("F", config={"chat_template": "C"}, name="a")).template == "F"
    assert load_tokenizer(make_folder(None, config={"chat_template": "C"}, name="b")).template == "C"
    assert load_tokenizer(make_folder(None, config={"chat_template": named}, name="c")).template == "D"
    assert load_tokenizer(make_folder(None, name="d")).template is None
    with pytest.raises(UsageError, match="default"):
        load_tokenizer(make_folder(None, config={"chat_template": named[:1]}, name="e"))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ raise_exception('No system turns here') }}", "No system turns here"),
        ("{{ raise_exception('Bad: ' + messages[0].content) }}", "Bad: ..."),
        ("{{ raise_exception('Bad ' ~ messages[0].content ~ ' here: ' + messages[0].role) }}", "Bad ... here: ..."),
        ("{{ raise_exception('a %s b' | format(messages[0].content)) }}", None),
        ("{{ raise_exception(messages[0].content) }}", None),
        ("{{ messages[0].nothing.more }}", "UndefinedError"),
        ("{{ messages[0].content + 5 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% for i in range(1000000000) %}{% endfor %}", "OverflowError"),
    ],
)
def test_a_template_error_never_carries_the_row(make_folder: MakeFolder, template: str, text: str | None) -> None:
    tokenizer = load_tokenizer(make_folder(template))
    with pytest.raises(RenderRefused) as told:
        tokenizer.render(ASK, False)
    assert (text or "TemplateError") in told.value.reason
    assert "secret" not in told.value.reason


def test_a_template_that_is_no_template_is_a_usage_error(make_folder: MakeFolder) -> None:
    with pytest.raises(UsageError, match="chat template"):
        load_tokenizer(make_folder("{% for m in %}")).render(ASK, False)


def test_templates_have_what_transformers_gives_them(make_folder: MakeFolder) -> None:
    template = (
        "{% for m in messages %}\n  {% if loop.index0 > 1 %}{% break %}{% endif %}\n{{ m | tojson }}{% endfor %}"
        "{% generation %}{{ bos_token }}|{{ eos_token }}|{{ nothing }}{% endgeneration %}"
        "{{ strftime_now('%Y') | length }}{{ tools is none }}"
    )
    tokenizer = load_tokenizer(make_folder(template, bos="<|im_start|>"))
    content = {"role": "user", "content": "<é>'"}
    assert tokenizer.render([content] * 3, False) == (
        '{"role": "user", "content": "<é>\'"}' * 2 + "<|im_start|>|<|im_end|>|4True"
    )


@pytest.mark.parametrize("prompt", [False, True])
def test_default_templates_keep_every_role_and_end_each_reply(make_folder: MakeFolder, prompt: bool) -> None:
    roles = ["system", "developer", "user", "assistant", "tool", "assistant"]
    messages = [{"role": role, "content": f"<{number}>"} for number, role in enumerate(roles)]
    chatml = load_tokenizer(make_folder(None, eos="<|endoftext|>")).render(messages, prompt)
    assert chatml == "".join(f"<|im_start|>{r}\n<{n}><|im_end|>\n" for n, r in enumerate(roles)) + (
        "<|im_start|>assistant\n" if prompt else ""
    )
    plain = load_tokenizer(make_folder(None, special=["<s>", "</s>"], bos="<s>", eos="</s>", name="plain"))
    assert plain.render(messages, prompt) == (
        "system: <0>\ndeveloper: <1>\nuser: <2>\nassistant: <3></s>\ntool: <4>\nassistant: <5></s>\n"
        + ("assistant:" if prompt else "")
    )
    with_bos = make_folder(None, special=["<s>", "</s>"], bos="<s>", eos="</s>", post="<s> $A", name="bos")
    assert load_tokenizer(with_bos).render(messages, prompt) == "<s>" + plain.render(messages, prompt)


def test_judging_loads_neither_torch_nor_transformers(make_folder: MakeFolder) -> None:
    code = (
        "import sys, pathlib; import stepctl.traces.judge as j; from stepctl.traces import rules\n"
        "light = {'jinja2', 'tokenizers'} & set(sys.modules)\n"
        "from stepctl.traces.render.tokenizer import load_tokenizer; from stepctl.traces.rows import Source\n"
        'source = Source(name=\'t\', data=b\'{"messages": [{"role": "assistant", "content": "a"}]}\')\n'
        "t = load_tokenizer(pathlib.Path(sys.argv[1]))\n"
        "print(len(j.judge([source], rules.Rules(max_length=9), t).rows))\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets', 'huggingface_hub'} & set(sys.modules)\n"
        "print(sorted(light), sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(make_folder())], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n[] []\n"


def test_text_is_decoded_with_its_special_tokens(chatml: TextTokenizer) -> None:
    text = "<|im_start|>é😀 two<|im_end|>"
    assert chatml.decode(chatml.encode(text, add_special_tokens=True).ids) == text


def test_a_batch_equals_its_texts(chatml: TextTokenizer) -> None:
    texts: list[Any] = ["two", "", "Paris is<|im_end|>"]
    assert chatml.encode_batch(texts, True) == [chatml.encode(text, True) for text in texts]


def test_the_rendering_has_a_digest_that_changes_with_it(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    others = [
        make_folder(name="a"),
        make_folder(name="b", eos="<|endoftext|>"),
        make_folder(dated, name="c"),
        make_folder(None, name="d"),
        make_folder("{{ raise_exception('no') }}", name="e"),
        make_folder("{% broken", name="f"),
    ]
    found = [load_tokenizer(folder).rendering for folder in others]
    assert len(set(found)) == len(others)
    assert [load_tokenizer(folder).rendering for folder in others] == found

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Tomorrow:
            return cls(2999, 1, 1)

    monkeypatch.setattr("stepctl.traces.render.template.datetime", Tomorrow)
    later = [load_tokenizer(folder).rendering for folder in others]
    assert [n for n, (a, b) in enumerate(zip(found, later, strict=True)) if a != b] == [2]


def test_a_template_that_writes_the_time_is_known_and_the_time_stands_still(make_folder: MakeFolder) -> None:
    dated = "{% if messages[0].role != 'system' %}{{ strftime_now('%d %b %Y %f') }}{% endif %}{{ messages[0].content }}"
    tokenizer = load_tokenizer(make_folder(dated))
    assert tokenizer.writes_the_time(ASK)
    assert not tokenizer.writes_the_time([{"role": "system", "content": "a"}])
    assert len({tokenizer.render(ASK, False) for _ in range(50)}) == 1
    assert not load_tokenizer(make_folder("{{ messages[0].content }}", name="undated")).writes_the_time(ASK)


@pytest.mark.parametrize("product", ["'a' * 10 ** 9", "10 ** (10 ** 10)", "[1] * 10 ** 9"])
def test_a_template_cannot_fill_the_memory_with_a_product(make_folder: MakeFolder, product: str) -> None:
    with pytest.raises(RenderRefused, match="OverflowError"):
        load_tokenizer(make_folder("{{ " + product + " }}")).render(ASK, False)


def test_a_mark_is_longer_than_any_that_a_text_has() -> None:
    assert longer_than("qx", ["a", "b"]) == "qx"
    assert longer_than("qx", ["a qx", "qxzz qxz"]) == "qxzzz"
    assert longer_than("qx", ["qx" + "z" * 3_000_000]) == "qx" + "z" * 3_000_001  # a minute, were it quadratic
