"""Rows of every shape, whole and broken in every place: an example or flaws, never both, and no word of the row."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from stepctl.traces.methods import feedback, preference, sft
from stepctl.traces.render.assemble import singles
from stepctl.traces.shapes.examples import Conversation, Shaped, prompt_of

SECRET = "qsecretq"
TEXT = st.sampled_from([SECRET, f"<think>{SECRET}</think>", f"<think>{SECRET}</think>{SECRET}", f'[{{"{SECRET}": 1}}]'])
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, 1.0, 0.5, float("inf"), 10**40])
    | st.sampled_from(["", " ", SECRET, "[]", "{}", "null", "NaN", '{"a": "\\ud800"}', "[" * 900, '{"a": 1, "a": 2}'])
)
KEY = st.sampled_from([SECRET, "role", "content", "from", "value", "type", "text", "function", "name", "arguments"])
ANY = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=4), max_leaves=5
)
ARGUMENTS = st.dictionaries(st.just(SECRET), SCALAR | TEXT, max_size=1)
FUNCTION = st.fixed_dictionaries({"name": TEXT, "arguments": ARGUMENTS | ARGUMENTS.map(json.dumps)})
CALL = FUNCTION | st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION}, optional={"id": TEXT})
PARTS = st.lists(TEXT | st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), min_size=1, max_size=2)
WORDS = TEXT | PARTS
ASKED = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "tool", "developer"]), "content": WORDS},
    optional={"weight": st.sampled_from([0, 1]), "name": TEXT, "tool_call_id": TEXT, SECRET: SCALAR},
)
SAID = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": WORDS},
    optional={
        "weight": st.sampled_from([1, 1.0, None, 0]),
        "thinking": TEXT | st.none(),
        "tool_calls": st.lists(CALL, max_size=2),
    },
)
SHARED = st.fixed_dictionaries(
    {"from": st.sampled_from(["human", "gpt", "system", "observation"]), "value": WORDS}
) | st.fixed_dictionaries({"from": st.just("function_call"), "value": FUNCTION.map(json.dumps)})
ASK = st.just({"role": "user", "content": SECRET})
PROMPT = st.builds(lambda more, ask: [*more, ask], st.lists(ASKED | SAID | SHARED, max_size=2), ASK)
REPLY = st.builds(lambda first, more: [first, *more], SAID, st.lists(ASKED | SAID, max_size=2) | st.just([]))
CHAT = st.builds(lambda prompt, reply: prompt + reply, PROMPT, REPLY)
TOOLS = st.lists(st.fixed_dictionaries({"name": TEXT}, optional={"parameters": ARGUMENTS}), max_size=2)
CHAT_COLUMNS: dict[str, Any] = {"tools": TOOLS | TOOLS.map(json.dumps), "parallel_tool_calls": ANY}
ALPACA: dict[str, Any] = {"input": TEXT, "history": st.lists(st.tuples(TEXT, TEXT).map(list), max_size=2)}


def row(columns: dict[str, Any], **optional: Any) -> Any:
    return st.fixed_dictionaries(columns, optional={"id": ANY} | optional)


def chat(columns: dict[str, Any], **optional: Any) -> Any:
    return row(columns, **CHAT_COLUMNS, **optional)


ROW = st.one_of(
    chat({"messages": CHAT | CHAT.map(json.dumps)}, system=TEXT),
    chat({"conversations": CHAT}),
    chat({"prompt": TEXT | PROMPT, "completion": REPLY | SAID}),
    row({"prompt": TEXT, "completion": TEXT}),
    chat({"instruction": TEXT, "output": TEXT}, system=TEXT, **ALPACA),
    row({"text": TEXT}),
    chat({"prompt": TEXT | PROMPT, "chosen": REPLY | SAID, "rejected": REPLY | SAID}),
    row({"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}),
    chat({"chosen": CHAT, "rejected": CHAT}),
    chat({"conversations": PROMPT, "chosen": SAID, "rejected": SAID}),
    chat({"instruction": TEXT, "chosen": TEXT, "rejected": TEXT}, **ALPACA),
    row(
        {
            "input": st.fixed_dictionaries({"messages": PROMPT}, optional={"tools": TOOLS}),
            "preferred_output": REPLY,
            "non_preferred_output": REPLY,
        }
    ),
)
LABEL = st.sampled_from([{}, {}, {"label": True}, {"label": 0, "desirable": "👎"}])


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a row: what holds it, and its key or number."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *places(value[key])]]


@st.composite
def broken(draw: st.DrawFn) -> dict[str, Any]:
    """A row of some shape with up to two places changed, left out or added."""
    made: dict[str, Any] = copy.deepcopy(draw(ROW)) | draw(LABEL)
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if not (all_places := places(made)):
            break
        holder, key = draw(st.sampled_from(all_places))
        act = draw(st.sampled_from(["tell", "change", "leave out", "add"]))
        if act == "tell":
            words = [place for place in all_places if isinstance(place[0][place[1]], str)]
            holder, key = draw(st.sampled_from(words or all_places))
            holder[key] = SECRET
        elif act == "change":
            holder[key] = draw(ANY)
        elif act == "leave out":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, draw(ANY))
        else:
            columns = ["messages", "prompt", "chosen", "output", "functions", "weight", "tool_calls", "label", "images"]
            holder[draw(st.sampled_from(columns))] = draw(ANY)
    return made


def check(shaped: Shaped, again: Shaped) -> None:
    assert (shaped.example is None) == bool(shaped.flaws)
    assert shaped == again
    told = [*shaped.flaws, *((note.field, note.reason) for note in shaped.notes)]
    assert SECRET not in str(told)
    assert all(reason and len(reason) < 400 for _, reason in told)
    if shaped.example is None:
        return
    assert shaped.kind
    hash((shaped.example, prompt_of(shaped.example)))
    for single in singles(shaped.example):
        if isinstance(single, Conversation):
            json.dumps([message.data() for message in single.messages])
            json.loads(single.tools or "[]")
            assert single.messages[single.prompt :]
            assert all(single.field(number) for number in range(len(single.messages)))


@settings(max_examples=250, deadline=None)
@given(broken(), st.sampled_from(["keep", "drop"]))
def test_any_row_is_an_example_or_has_flaws(made: dict[str, Any], thinking: Any) -> None:
    before = copy.deepcopy(made)
    for method in (sft, preference, feedback):
        shaped = method.shape(made, thinking=thinking)
        event(f"{method.__name__} {'bad' if shaped.flaws else shaped.kind}")
        check(shaped, method.shape(made, thinking=thinking))
    check(sft.shape(made, need_assistant=False), sft.shape(made, need_assistant=False))
    assert made == before


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*sft.SHAPE_COLUMNS, *preference.SIDES, "label", "input", "tools"]), ANY))
def test_any_values_in_the_columns_that_are_read(made: dict[str, Any]) -> None:
    for method in (sft, preference, feedback):
        check(method.shape(made), method.shape(made))
