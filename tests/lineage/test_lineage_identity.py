"""Identity: what may not change, and how a difference is said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.lineage.making import IDENTITY

from stepctl.base.errors import Exit, LineageConflict
from stepctl.lineage.records import Identity
from stepctl.lineage.store import differences, require_same

FOLDER = replace(IDENTITY, model="/home/me/model", revision="files:aa")


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (replace(IDENTITY, alpha=64), "LoRA alpha: the lineage has 16, this call asks for 64"),
        (replace(IDENTITY, r=16), "LoRA rank: the lineage has 8, this call asks for 16"),
        (replace(IDENTITY, dropout=0.1), "LoRA dropout: the lineage has 0.0, this call asks for 0.1"),
        (
            replace(IDENTITY, target_modules=("q_proj",)),
            "LoRA target modules: the lineage has q_proj, v_proj, this call asks for q_proj",
        ),
        (replace(IDENTITY, method="dpo"), "method: the lineage has sft, this call asks for dpo"),
        (replace(IDENTITY, vocab_size=1001), "vocabulary size: the lineage has 1000, this call asks for 1001"),
        (
            replace(IDENTITY, model="org/other"),
            f"model: the lineage has org/model ({'0' * 40}), this call asks for org/other ({'0' * 40})",
        ),
        (
            replace(IDENTITY, revision="1" * 40),
            f"model revision: the lineage has {'0' * 40}, this call asks for {'1' * 40}",
        ),
        (
            replace(IDENTITY, origin="ff"),
            "origin (--init-from, sha256 of the adapter it started from): the lineage has none, this call asks for ff",
        ),
    ],
)
def test_each_difference_has_its_line(asked: Identity, line: str) -> None:
    assert differences(IDENTITY, asked) == [line]


def test_what_makes_no_difference() -> None:
    assert differences(IDENTITY, IDENTITY) == []
    assert differences(IDENTITY, replace(IDENTITY, target_modules=("v_proj", "q_proj"))) == []
    assert differences(replace(IDENTITY, origin="ff"), IDENTITY) == []
    assert differences(FOLDER, replace(FOLDER, model="/elsewhere/model")) == []


def test_a_folder_is_known_by_its_content() -> None:
    assert differences(FOLDER, replace(FOLDER, revision="files:bb")) == [
        "content of the model folder: the lineage has files:aa, this call asks for files:bb"
    ]
    assert differences(IDENTITY, FOLDER)[0].startswith("model: the lineage has org/model")


def test_all_differences_are_in_one_refusal() -> None:
    with pytest.raises(LineageConflict) as refused:
        require_same("main", IDENTITY, replace(IDENTITY, r=4, alpha=4))
    assert refused.value.exit_code == Exit.CONFLICT
    assert len(refused.value.details["differences"]) == 2
    for word in ("rank", "alpha"):
        assert word in refused.value.message
    require_same("main", IDENTITY, IDENTITY)
