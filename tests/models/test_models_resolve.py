"""What identifies a model, and the memory it is likely to take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.doubles.project import tokenizer_folder

from stepctl.base.errors import UsageError
from stepctl.models.memory import estimate, parameters
from stepctl.models.resolve import fingerprint, resolve_model

SMOL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
}


def test_the_content_identifies_a_folder(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "a")
    weights = folder / "model.safetensors"
    weights.write_bytes(bytes(8 << 20))
    first = fingerprint(folder)
    moved = folder.rename(tmp_path / "b")
    assert fingerprint(moved) == first
    data = bytearray((moved / weights.name).read_bytes())
    data[-1] = 1
    (moved / weights.name).write_bytes(data)
    assert fingerprint(moved) != first


@pytest.mark.parametrize(
    ("config", "word"), [(None, "config.json"), ("{", "JSON"), ("[]", "object"), ("{}", "vocab_size")]
)
def test_what_is_no_model(tmp_path: Path, config: str | None, word: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match=word):
        resolve_model(str(tmp_path), None, None)


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    with pytest.raises(UsageError, match="revision"):
        resolve_model(str(tmp_path), "main", None)


def test_parameters_of_a_known_model() -> None:
    # SmolLM2-135M has 134,515,008; what is left out here are its norms.
    assert abs(parameters(SMOL) - 134_515_008) < 40_000


def test_the_estimate_grows_with_the_longest_row() -> None:
    assert 1e9 < estimate(SMOL, 128) < estimate(SMOL, 1024) < 6e9
