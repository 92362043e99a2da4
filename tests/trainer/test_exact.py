"""What changed since the parent was made, as far as it matters for the bytes."""

from __future__ import annotations

import pytest

from stepctl.trainer.exact import FIELDS, differences

SAME = {name: "1" for name in FIELDS if name != "device_map"}


def test_the_same_machine_and_release_differ_in_nothing() -> None:
    assert differences(SAME, SAME) == []
    assert differences({**SAME, "stepctl": "1", "python": "3.11"}, {**SAME, "stepctl": "2", "python": "3.12"}) == []


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_that_matters_is_named(name: str) -> None:
    before, now = {**SAME, name: "2"}, {**SAME, name: "3"}
    assert differences(before, now) == [f"{name}: 2 -> 3"]


def test_what_an_earlier_release_did_not_record_is_passed_over_but_a_model_was_whole_then() -> None:
    assert differences({}, SAME) == []
    assert differences(SAME, {**SAME, "device_map": "cuda:0 a; cuda:1 b"}) == [
        "device_map: whole -> cuda:0 a; cuda:1 b"
    ]
