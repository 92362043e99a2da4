"""Every refusal of the settings: what is named, what is suggested, and that nothing else escapes."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepctl.base.errors import Exit, UsageError
from stepctl.config.fields import settings as known_settings
from stepctl.config.fields import target_kinds
from stepctl.config.load import Loaded, load_settings
from stepctl.config.sources import is_secret

TOML = "{toml}"
"""Stands for the file's path in the texts below."""


def refused(
    here: Path, toml: str | bytes | None = None, env: dict[str, str] | None = None, **options: object
) -> UsageError:
    if toml is not None:
        (here / "stepctl.toml").write_bytes(toml.encode() if isinstance(toml, str) else toml)
    with pytest.raises(UsageError) as caught:
        load_settings({name.replace("__", "."): value for name, value in options.items()}, env or {}, here)
    assert caught.value.exit_code == Exit.USAGE
    return caught.value


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("learning_rate = 1", "unknown setting learning_rate in {toml}: did you mean train.learning_rate?"),
        (
            "[train]\nlearning_ratee = 1",
            "unknown setting train.learning_ratee in {toml}: did you mean train.learning_rate?",
        ),
        ("[lora]\nseed = 1", "unknown setting lora.seed in {toml}: did you mean train.seed?"),
        ("learningrate = 1", "unknown setting learningrate in {toml}: did you mean train.learning_rate?"),
        ("Learning-Rate = 1", "unknown setting Learning-Rate in {toml}: did you mean train.learning_rate?"),
        ("MODEL_ID = 'a'", "unknown setting MODEL_ID in {toml}: did you mean model?"),
        ("LORA_R = 1", "unknown setting LORA_R in {toml}: did you mean lora.r?"),
        ("lineag = 'a'", "unknown setting lineag in {toml}: did you mean lineage?"),
        ("[tarin]\nseed = 1", "unknown setting tarin in {toml}: did you mean train?"),
        ("zzz = 1", "unknown setting zzz in {toml}"),
        (
            "[train]\nseed.x = 1",
            "train.seed must be a whole number, at least 0, at most 9223372036854775807; {toml} says a table",
        ),
        ('"a\\nb" = 1', "unknown setting 'a\\nb' in {toml}"),
        ('"" = 1', "unknown setting '' in {toml}"),
        ('"train.seed" = 1', "train.seed in {toml} has a quoted key with a dot"),
        (
            "[targets.x]\nkind = 'local'\npyhton = 'p'",
            "unknown setting targets.x.pyhton in {toml}: did you mean targets.x.python?",
        ),
        ("[targets.x]\nkind = 'local'\nzzz = 'p'", "unknown setting targets.x.zzz in {toml}"),
    ],
)
def test_unknown_keys(tmp_path: Path, toml: str, message: str) -> None:
    error = refused(tmp_path, toml)
    assert error.message == message.replace(TOML, str(tmp_path / "stepctl.toml"))
    if message.startswith("unknown"):
        assert error.code == "unknown_setting"
        assert error.details["source"] == "stepctl.toml"


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("STEPCTL_LEARNING_RATE", "STEPCTL_TRAIN__LEARNING_RATE"),
        ("STEPCTL_TRAIN_LEARNING_RATE", "STEPCTL_TRAIN__LEARNING_RATE"),
        ("STEPCTL_TRAIN__LEARNING_RATEE", "STEPCTL_TRAIN__LEARNING_RATE"),
        ("STEPCTL_MODEL_ID", "STEPCTL_MODEL"),
        ("STEPCTL_MODLE", "STEPCTL_MODEL"),
        ("STEPCTL_LORA__SEED", "STEPCTL_TRAIN__SEED"),
        ("STEPCTL_LINEAGES", "STEPCTL_LINEAGE"),
        ("STEPCTL_ZZ__QQ", None),
    ],
)
def test_mistyped_variables(tmp_path: Path, variable: str, suggestion: str | None) -> None:
    error = refused(tmp_path, env={variable: "1"})
    end = f": did you mean {suggestion}?" if suggestion else ""
    assert error.message == f"unknown setting {variable} in the environment{end}"
    assert (error.next, error.details["suggestion"]) == ("rename it, or unset it", suggestion)


INTEGER = "a whole number, at least 0, at most 9223372036854775807"
RATE = "train.learning_rate must be a number, greater than 0;"
MODULES = "lora.target_modules must be a list of names;"
BUCKET = "bucket must be a directory, or hf://buckets/NAMESPACE/NAME with or without a /PREFIX;"


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[train]\nseed = true", f"train.seed must be {INTEGER}; {{toml}} says true"),
        ("[train]\nseed = 4.0", f"train.seed must be {INTEGER}; {{toml}} says 4.0"),
        ("[train]\nseed = '4'", f"train.seed must be {INTEGER}; {{toml}} says '4'"),
        ("[train]\nseed = -1", f"train.seed must be {INTEGER}; {{toml}} says -1"),
        ("[train]\nseed = 9223372036854775808", f"train.seed must be {INTEGER}; {{toml}} says a number too large"),
        ("[train]\nseed = [1]", f"train.seed must be {INTEGER}; {{toml}} says [1]"),
        ("[train]\nlearning_rate = false", f"{RATE} {{toml}} says false"),
        ("[train]\nlearning_rate = 0", f"{RATE} {{toml}} says 0"),
        ("[train]\nlearning_rate = inf", f"{RATE} {{toml}} says inf"),
        ("[train]\nlearning_rate = nan", f"{RATE} {{toml}} says nan"),
        ("[train]\nlearning_rate = 2024-01-01", f"{RATE} {{toml}} says a date or time"),
        ("[lora]\ndropout = 1.0", "lora.dropout must be a number, at least 0, less than 1; {toml} says 1.0"),
        ("[lora]\nr = 1025", "lora.r must be a whole number, at least 1, at most 1024; {toml} says 1025"),
        (
            "[lora]\nalpha = 0x" + "f" * 6000,
            "lora.alpha must be a whole number, at least 1; {toml} says a number too large",
        ),
        ("[lora]\ntarget_modules = 'q'", f"{MODULES} {{toml}} says 'q'"),
        ("[lora]\ntarget_modules = ['q', 1]", f"{MODULES} {{toml}} says ['q', 1]"),
        ("[lora]\ntarget_modules = [['q']]", f"{MODULES} {{toml}} says a nested list"),
        ("[lora]\ntarget_modules = []", "lora.target_modules must name at least one, and {toml} gives none"),
        ("[lora]\ntarget_modules = ['a', 'b', 'a']", "lora.target_modules names 'a' twice in {toml}"),
        (
            "[lora]\ntarget_modules = ['a', ' ']",
            "lora.target_modules must not be empty, and {toml} gives an empty text",
        ),
        ("trust_remote_code = 1", "trust_remote_code must be true or false; {toml} says 1"),
        ("trust_remote_code = 'true'", "trust_remote_code must be true or false; {toml} says 'true'"),
        ("method = 'rl'", 'method must be "dpo", "kto" or "sft"; {toml} says \'rl\''),
        ("[train]\nprecision = 'fp16'", 'train.precision must be "auto", "bf16" or "fp32"; {toml} says \'fp16\''),
        ("model = 3", "model must be text; {toml} says 3"),
        ("revision = 3", "revision must be text; {toml} says 3"),
        ("model = ''", "model must not be empty, and {toml} gives an empty text"),
        ("bucket = ' '", "bucket must not be empty, and {toml} gives an empty text"),
        ("runs = ''", "runs must not be empty, and {toml} gives an empty text"),
        ('bucket = "a\\u0000b"', "bucket has a control character; {toml} says 'a\\x00b'"),
        ("bucket = 's3://x'", f"{BUCKET} {{toml}} says 's3://x'"),
        ("bucket = 'hf://models/a/b'", f"{BUCKET} {{toml}} says 'hf://models/a/b'"),
        ("bucket = 'hf://buckets/a'", f"{BUCKET} {{toml}} says 'hf://buckets/a'"),
        ("bucket = 'hf://buckets/a/b/../c'", f"{BUCKET} {{toml}} says 'hf://buckets/a/b/../c'"),
        ("model = 'https://x/y'", "model must be a Hugging Face id or a folder; {toml} says 'https://x/y'"),
        (
            "bucket = '~nobody-of-this-name/x'",
            "bucket names the home of a user who is not known: '~nobody-of-this-name/x'",
        ),
        ("lineage = 'a/b'", "lineage 'a/b' is not usable as a name ({toml})"),
        ("train = 3", "train in {toml} must be a table"),
        ("train = [{seed = 1}]", "train in {toml} must be a table"),
        ("targets = 3", "targets in {toml} must be a table"),
        ("[targets]\nx = 3", "targets.x in {toml} must be a table"),
        ("[targets.x]\nkind = 'cloud'", 'targets.x.kind must be "local", "ssh" or "runpod"; {toml} says \'cloud\''),
        ("[targets.x]\nkind = 3", 'targets.x.kind must be "local", "ssh" or "runpod"; {toml} says 3'),
        ("[targets.x]\npython = 'p'", "target x has no kind ({toml})"),
        ("[targets.x]", "target x has no kind ({toml})"),
        ("[targets.x]\nkind = 'local'\npython = 3", "targets.x.python must be text; {toml} says 3"),
        ("[targets.'a b']\nkind = 'local'", "target 'a b' is not usable as a name ({toml})"),
        ("target = 'x'\n[targets.y]\nkind = 'local'", "there is no target x ({toml}); there are: local, y"),
    ],
)
def test_wrong_values(tmp_path: Path, toml: str, message: str) -> None:
    file = tmp_path / "stepctl.toml"
    error = refused(tmp_path, toml)
    assert error.message == message.replace(TOML, str(file))
    assert error.next
    assert error.details["source"] == "stepctl.toml"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("STEPCTL_TRAIN__SEED", "true", f"train.seed must be {INTEGER}; environment STEPCTL_TRAIN__SEED says 'true'"),
        ("STEPCTL_TRAIN__SEED", "4.0", f"train.seed must be {INTEGER}; environment STEPCTL_TRAIN__SEED says '4.0'"),
        ("STEPCTL_TRAIN__SEED", "1_0", f"train.seed must be {INTEGER}; environment STEPCTL_TRAIN__SEED says '1_0'"),
        (
            "STEPCTL_TRAIN__SEED",
            "\u0663",
            f"train.seed must be {INTEGER}; environment STEPCTL_TRAIN__SEED says '\u0663'",
        ),
        ("LEARNING_RATE", "nan", f"{RATE} environment LEARNING_RATE says 'nan'"),
        ("LEARNING_RATE", "1e999", f"{RATE} environment LEARNING_RATE says inf"),
        ("LEARNING_RATE", "fast", f"{RATE} environment LEARNING_RATE says 'fast'"),
        ("LEARNING_RATE", "true", f"{RATE} environment LEARNING_RATE says 'true'"),
        (
            "STEPCTL_TRUST_REMOTE_CODE",
            "1",
            "trust_remote_code must be true or false; environment STEPCTL_TRUST_REMOTE_CODE says '1'",
        ),
        (
            "LORA_TARGET_MODULES",
            "a,,b",
            "lora.target_modules must not be empty, and environment LORA_TARGET_MODULES gives an empty text",
        ),
        ("LORA_TARGET_MODULES", "[1]", f"{MODULES} environment LORA_TARGET_MODULES says [1]"),
        ("LORA_TARGET_MODULES", "[null]", f"{MODULES} environment LORA_TARGET_MODULES says [nothing]"),
        ("LORA_TARGET_MODULES", "[", f"{MODULES} environment LORA_TARGET_MODULES says '['"),
        ("LORA_TARGET_MODULES", "[" * 5000, None),
        ("LORA_TARGET_MODULES", "a,a", "lora.target_modules names 'a' twice in environment LORA_TARGET_MODULES"),
        ("MODEL_ID", "caf\udce9", "model is not UTF-8 in environment MODEL_ID"),
        ("STEPCTL_TARGET", "gpu", "there is no target gpu (environment STEPCTL_TARGET); there are: local"),
        ("STEPCTL_TARGETS__GPU__PYTHON", "p", "target gpu has no kind (environment STEPCTL_TARGETS__GPU__PYTHON)"),
        (
            "STEPCTL_TARGETS__GPU__KIND",
            "x",
            'targets.gpu.kind must be "local", "ssh" or "runpod"; environment STEPCTL_TARGETS__GPU__KIND says \'x\'',
        ),
    ],
)
def test_wrong_variables(tmp_path: Path, variable: str, value: str, message: str | None) -> None:
    error = refused(tmp_path, env={variable: value})
    if message is not None:
        assert error.message == message
    assert error.details["source"] == f"environment {variable}"
    assert variable in error.message


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("train.learning_rate", float("nan"), f"{RATE} --learning-rate says nan"),
        ("train.grad_accum", 0, "train.grad_accum must be a whole number, at least 1; --grad-accum says 0"),
        ("model", "", "model must not be empty, and --model gives an empty text"),
        ("lineage", "../x", "lineage '../x' is not usable as a name (--lineage)"),
        ("target", "gpu", "there is no target gpu (--target); there are: local"),
    ],
)
def test_wrong_options(tmp_path: Path, name: str, value: object, message: str) -> None:
    error = refused(tmp_path, **{name: value})
    assert error.message == message
    assert error.details["source"] == "option"


def test_what_to_do_differs_by_source(tmp_path: Path) -> None:
    file = tmp_path / "stepctl.toml"
    assert refused(tmp_path, train__seed=-1).next == "give another value to --seed"
    assert refused(tmp_path, env={"STEPCTL_TRAIN__SEED": "x"}).next == "correct STEPCTL_TRAIN__SEED, or unset it"
    assert refused(tmp_path, "[train]\nseed = -1").next == f"correct train.seed in {file}"
    assert refused(tmp_path, "zzz = 1").next == "remove it: no setting has a similar name"
    assert refused(tmp_path, "lineag = 1").next == "rename or remove it"
    assert refused(tmp_path, "[targets.x]").next == 'give it one under [targets.x]: kind = "local", "ssh" or "runpod"'
    assert refused(tmp_path, "target = 'x'").next == "name one of them, or add [targets.x] to stepctl.toml"


def test_an_option_that_is_no_setting_is_a_mistake_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        load_settings({"lerning_rate": 1}, {}, tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a = 1\nb =\n", "it is not TOML: Invalid value (at line 2, column 4)"),
        (b"a = 1\nb = '''\nx", "it is not TOML: Expected \"'''\" (at line 3, the end)"),
        (b"[a]\n[a]\n", "it is not TOML: Cannot declare ('a',) twice (at line 2, column 3)"),
        (b"a = 1\n# caf\xe9\n", "line 2 is not UTF-8"),
        (b"a = " + b"[" * 9000, "a number is too long or the nesting too deep"),
        (b"a = 1" + b"0" * 5000, "a number is too long or the nesting too deep"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, why: str) -> None:
    error = refused(tmp_path, content)
    assert error.message == f"{tmp_path / 'stepctl.toml'} cannot be read: {why}"
    assert error.code == "unreadable_settings"


def test_a_very_deep_key_is_an_unknown_one(tmp_path: Path) -> None:
    assert refused(tmp_path, "a." * 2000 + "b = 1").code in ("unknown_setting", "unreadable_settings")


def test_a_folder_or_a_dead_link_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "stepctl.toml").mkdir()
    assert "it is not a file, or a link to none" in refused(tmp_path).message
    (tmp_path / "stepctl.toml").rmdir()
    (tmp_path / "stepctl.toml").symlink_to("nowhere")
    assert "it is not a file, or a link to none" in refused(tmp_path).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "stepctl.toml").write_text("")
    (tmp_path / "stepctl.toml").chmod(0)
    assert refused(tmp_path).message.endswith("cannot be read: Permission denied")


SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        (f"hf_token = '{SECRET}'", "hf_token"),
        (f"HF_TOKEN = '{SECRET}'", "HF_TOKEN"),
        (f"token = '{SECRET}'", "token"),
        (f"[train]\napi_key = '{SECRET}'", "train.api_key"),
        (f"[targets.x]\nkind = 'local'\nrunpod_api_key = '{SECRET}'", "targets.x.runpod_api_key"),
        (f"[targets.x]\nkind = 'nonsense'\n'RUNPOD-API-KEY' = '{SECRET}'", "targets.x.RUNPOD-API-KEY"),
        (f"a = [[{{b = [{{token = '{SECRET}'}}]}}]]", "a.b.token"),
        ("token = 3", "token"),
    ],
)
def test_secrets_in_the_file_are_refused(tmp_path: Path, toml: str, key: str) -> None:
    file = tmp_path / "stepctl.toml"
    error = refused(tmp_path, toml)
    assert error.message == f"{key} in {file} is a secret, and secrets do not belong in that file"
    assert "put it in the environment" in error.next
    assert SECRET not in f"{error.message}{error.next}{error.details}"


@pytest.mark.parametrize("toml", [f"method = '{SECRET}'", f"[train]\nseed = '{SECRET}'", f"bucket = 'x://{SECRET}'"])
def test_a_token_in_a_wrong_place_is_not_repeated(tmp_path: Path, toml: str) -> None:
    error = refused(tmp_path, toml)
    assert SECRET not in f"{error.message}{error.next}{error.details}"


def test_no_setting_is_named_like_a_secret() -> None:
    keys = [s.key for s in known_settings().values()] + [key for kind in target_kinds().values() for key in kind]
    assert not [key for key in keys if is_secret(key)]


# Whatever is in the file, the answer is a refusal or settings.

KEYS = st.one_of(
    st.sampled_from(
        sorted(
            {part for s in known_settings().values() for part in s.name.split(".")} | {"targets", "local", "kind", "x"}
        )
    ),
    st.text(max_size=5),
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.sampled_from(["sft", "local", "", "~", "/", "hf://buckets/a/b", "auto"]),
    st.text(max_size=6),
    st.datetimes(),
    st.dates(),
    st.times(),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def outcome(content: bytes, env: dict[str, str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "stepctl.toml").write_bytes(content)
        try:
            assert isinstance(load_settings({}, env or {}, Path(folder)), Loaded)
        except UsageError as error:
            assert error.message and error.next
            assert "\0" not in error.message


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
@example({"targets": {"local": {"kind": "local", "python": "~"}}})
@example({"train": {"seed": 0}, "lora": {}})
def test_any_document_is_refused_or_loaded(document: dict[str, Any]) -> None:
    outcome(tomli_w.dumps(document).encode())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_loaded(content: bytes) -> None:
    outcome(content)


NAMES = st.one_of(
    st.sampled_from(
        [s.env for s in known_settings().values()] + [s.plain for s in known_settings().values() if s.plain]
    ),
    st.sampled_from(["STEPCTL_TARGETS__LOCAL__PYTHON", "STEPCTL_TARGETS__X__KIND", "STEPCTL_TARGETS____KIND"]),
    st.text(st.characters(exclude_characters="=\0", codec="utf-8"), max_size=8).map("STEPCTL_{}".format),
)
TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=8)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(NAMES, TEXTS | st.sampled_from(["1", "1.5", "true", "local", "[1]", '["a"]', "a,b"]), max_size=3)
)
def test_any_environment_is_refused_or_loaded(env: dict[str, str]) -> None:
    outcome(b"", env)


def test_the_suggestion_is_a_setting() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in known_settings():
            error = refused(Path(folder), f"{name.rpartition('.')[2]}x = 1")
            found = re.search(r"did you mean ([\w.]+)\?", error.message)
            assert found is None or found[1] in known_settings()
