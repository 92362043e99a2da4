"""Precedence, provenance, paths and the token: what a call's settings come out as."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stepctl.base.errors import UsageError
from stepctl.config.fields import flat
from stepctl.config.load import Loaded, load_settings
from stepctl.config.model import LocalTarget, RunpodTarget, Settings, SshTarget


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The project's folder, without links in its path."""
    return tmp_path.resolve()


def load(
    here: Path,
    toml: str | None = None,
    env: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
    cwd: Path | None = None,
) -> Loaded:
    if toml is not None:
        (here / "stepctl.toml").write_text(toml, encoding="utf-8")
    return load_settings(options or {}, env or {}, cwd or here)


def test_defaults(here: Path) -> None:
    loaded = load(here)
    expected = {**flat(Settings()), "bucket": str(here / "checkpoints"), "runs": str(here / "runs")}
    values = flat(loaded.settings)
    assert {name: values[name] for name in expected} == expected
    assert loaded.settings.targets == {"local": LocalTarget()}
    assert set(loaded.sources.values()) == {"default"}
    assert (loaded.given, loaded.project, loaded.toml, loaded.warnings) == (frozenset(), here, None, [])
    assert (loaded.hf_token, loaded.hf_token_source) == (None, None)


LAYERS = ("option", "environment STEPCTL_{}", "environment {}", "stepctl.toml", "default")
MATRIX = {
    "train.learning_rate": (
        "TRAIN__LEARNING_RATE",
        "LEARNING_RATE",
        (0.5, "0.4", "0.3", 0.2),
        (0.5, 0.4, 0.3, 0.2, 1e-4),
    ),
    "train.grad_accum": ("TRAIN__GRAD_ACCUM", "GRAD_ACCUM", (9, "8", "7", 6), (9, 8, 7, 6, 4)),
    "model": ("MODEL", "MODEL_ID", ("a/o", "a/s", "a/p", "a/t"), ("a/o", "a/s", "a/p", "a/t", Settings().model)),
    "bucket": (
        "BUCKET",
        "BUCKET_ID",
        ("/o", "/s", "ns/name", "/t"),
        ("/o", "/s", "hf://buckets/ns/name", "/t", "{here}/checkpoints"),
    ),
}


@pytest.mark.parametrize("name", MATRIX)
@pytest.mark.parametrize("top", range(5))
@pytest.mark.parametrize("below", [True, False])
def test_the_highest_source_counts(here: Path, name: str, top: int, below: bool) -> None:
    """Each source alone, and each with all lower ones given too."""
    prefixed, plain, values, expected = MATRIX[name]
    present = [i == top or (below and i > top) for i in range(4)]
    section, _, key = name.rpartition(".")
    header = f"[{section}]\n" if section else ""
    toml = f"{header}{key} = {values[3]!r}\n" if present[3] else ""
    variables = ((f"STEPCTL_{prefixed}", values[1]), (plain, values[2]))
    env = {variable: str(value) for given, (variable, value) in zip(present[1:3], variables, strict=True) if given}
    loaded = load(here, toml, env, {name: values[0] if present[0] else None})
    wanted = expected[top]
    assert flat(loaded.settings)[name] == (wanted.format(here=here) if isinstance(wanted, str) else wanted)
    assert loaded.sources[name] == LAYERS[top].format(prefixed if top == 1 else plain)
    assert (name in loaded.given) == (top < 4)


def test_every_plain_name(here: Path) -> None:
    env = {
        "MODEL_ID": "org/m",
        "BUCKET_ID": "hf://buckets/a/b/c",
        "LORA_R": "4",
        "LORA_ALPHA": "5",
        "LORA_DROPOUT": "0.1",
        "LORA_TARGET_MODULES": "q_proj, v_proj",
        "LEARNING_RATE": "1e-3",
        "MAX_LENGTH": "77",
        "GRAD_ACCUM": "3",
    }
    s = load(here, env=env).settings
    assert (s.model, s.bucket, s.lora.r, s.lora.alpha) == ("org/m", "hf://buckets/a/b/c", 4, 5)
    assert (s.lora.dropout, s.lora.target_modules) == (0.1, ("q_proj", "v_proj"))
    assert (s.train.learning_rate, s.train.max_length, s.train.grad_accum) == (1e-3, 77, 3)


def test_each_part_of_a_section_has_its_own_source(here: Path) -> None:
    loaded = load(here, "[train]\nseed = 1\nmax_length = 9\n", {"MAX_LENGTH": "8"}, {"train.grad_accum": 2})
    assert (loaded.settings.train.seed, loaded.settings.train.max_length, loaded.settings.train.grad_accum) == (1, 8, 2)
    assert loaded.given == {"train.seed", "train.max_length", "train.grad_accum"}
    assert loaded.sources["train.max_length"] == "environment MAX_LENGTH"


@pytest.mark.parametrize("variable", ["STEPCTL_train__Seed", "STEPCTL_TRAIN__SEED", "STEPCTL_train__seed"])
def test_case_after_the_prefix_does_not_matter(here: Path, variable: str) -> None:
    loaded = load(here, env={variable: "5"})
    assert (loaded.settings.train.seed, loaded.sources["train.seed"]) == (5, f"environment {variable}")


def test_two_cases_of_one_variable_may_agree(here: Path) -> None:
    assert load(here, env={"STEPCTL_LINEAGE": "a", "STEPCTL_lineage": "a"}).settings.lineage == "a"
    with pytest.raises(UsageError, match="STEPCTL_LINEAGE and STEPCTL_lineage give lineage two values"):
        load(here, env={"STEPCTL_LINEAGE": "a", "STEPCTL_lineage": "b"})


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_an_empty_variable_is_not_set(here: Path, text: str) -> None:
    env = {"STEPCTL_TRAIN__SEED": text, "MODEL_ID": text, "HF_TOKEN": text, "STEPCTL_NO__SUCH": text}
    loaded = load(here, "[train]\nseed = 3\n", env)
    assert (loaded.settings.train.seed, loaded.settings.model, loaded.hf_token) == (3, Settings().model, None)


@pytest.mark.parametrize("text", ["a,b", " a , b ", '["a", "b"]', '[ "a","b" ]'])
def test_lists_in_the_environment(here: Path, text: str) -> None:
    assert load(here, env={"STEPCTL_LORA__TARGET_MODULES": text}).settings.lora.target_modules == ("a", "b")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("FALSE", False), ("True", True)])
def test_booleans_in_the_environment(here: Path, text: str, value: bool) -> None:
    assert load(here, env={"STEPCTL_TRUST_REMOTE_CODE": text}).settings.trust_remote_code is value


@pytest.mark.parametrize("text", ["1", "1.", "1e0", "+1", ".1e1", "10E-1", " 1.0 "])
def test_numbers_in_the_environment(here: Path, text: str) -> None:
    assert load(here, env={"STEPCTL_TRAIN__WEIGHT_DECAY": text}).settings.train.weight_decay == 1.0


def test_a_whole_number_does_for_a_number(here: Path) -> None:
    value = load(here, "[train]\nlearning_rate = 1\n").settings.train.learning_rate
    assert isinstance(value, float) and value == 1.0


def test_an_overridden_value_is_not_judged(here: Path) -> None:
    loaded = load(here, "[train]\nseed = -1\n", {"LEARNING_RATE": "x"}, {"train.seed": 1, "train.learning_rate": 0.1})
    assert (loaded.settings.train.seed, loaded.settings.train.learning_rate) == (1, 0.1)


def test_empty_text_unsets_what_is_optional(here: Path) -> None:
    loaded = load(here, 'revision = "v1"\ninit_from = ""\n', options={"revision": ""})
    assert (loaded.settings.revision, loaded.settings.init_from) == (None, None)
    assert loaded.sources["revision"] == "option"


def test_the_file_is_searched_upwards_and_the_nearest_counts(here: Path) -> None:
    inner = here / "a" / "b"
    inner.mkdir(parents=True)
    loaded = load(here, 'lineage = "outer"', cwd=inner)
    assert (loaded.settings.lineage, loaded.project, loaded.toml) == ("outer", here, here / "stepctl.toml")
    (here / "a" / "stepctl.toml").write_text("")
    loaded = load_settings({}, {}, inner)
    assert (loaded.settings.lineage, loaded.project) == ("main", here / "a")


def test_a_byte_order_mark_and_crlf_are_fine(here: Path) -> None:
    (here / "stepctl.toml").write_bytes(b'\xef\xbb\xbflineage = "x"\r\n[train]\r\nseed = 2\r\n')
    assert load(here).settings.train.seed == 2


# Paths


def test_relative_paths_of_the_file_and_defaults_belong_to_the_project(here: Path) -> None:
    sub = here / "sub"
    sub.mkdir()
    loaded = load(
        here, 'bucket = "b"\nmodel = "./m"\ninit_from = "x/y"\n[targets.local]\npython = "v/python"\n', cwd=sub
    )
    s = loaded.settings
    assert (s.bucket, s.runs, s.model, s.init_from) == tuple(str(here / p) for p in ("b", "runs", "m", "x/y"))
    assert s.targets["local"].python == str(here / "v/python")


@pytest.mark.parametrize("by_option", [True, False])
def test_relative_paths_of_options_and_environment_belong_to_the_current_folder(here: Path, by_option: bool) -> None:
    sub = here / "sub"
    sub.mkdir()
    given = {"bucket": "../b", "model": "./m", "init_from": "./a", "runs": "r"}
    env = {} if by_option else {f"STEPCTL_{name.upper()}": value for name, value in given.items()}
    s = load(here, "", env, given if by_option else {}, cwd=sub).settings
    assert (s.bucket, s.model, s.init_from, s.runs) == tuple(map(str, (here / "b", sub / "m", sub / "a", sub / "r")))


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("org/name", "org/name"),
        ("name", "name"),
        ("folder", "{here}/folder"),
        ("folder/inner", "{here}/folder/inner"),
        ("./none", "{here}/none"),
        ("../none", "{above}/none"),
        ("/none", "/none"),
        (".", "{here}"),
        ("~/m", "{home}/m"),
        ("x" * 300, "x" * 300),
    ],
)
def test_a_model_is_a_folder_or_an_id(here: Path, monkeypatch: pytest.MonkeyPatch, text: str, resolved: str) -> None:
    (here / "folder" / "inner").mkdir(parents=True)
    monkeypatch.setenv("HOME", "/home/somebody")
    places = {"here": here, "above": here.parent, "home": "/home/somebody"}
    assert load(here, f'model = "{text}"').settings.model == resolved.format(**places)
    assert load(here, "", options={"model": text}).settings.model == resolved.format(**places)


@pytest.mark.parametrize(
    ("text", "by_id", "otherwise"),
    [
        ("ns/name", "hf://buckets/ns/name", "{here}/ns/name"),
        ("hf://buckets/ns/name", "hf://buckets/ns/name", "hf://buckets/ns/name"),
        ("hf://buckets/ns/name/a/b/", "hf://buckets/ns/name/a/b", "hf://buckets/ns/name/a/b"),
        ("/abs/dir", "/abs/dir", "/abs/dir"),
        ("./a/b", "{here}/a/b", "{here}/a/b"),
        ("name", "{here}/name", "{here}/name"),
    ],
)
def test_buckets(here: Path, text: str, by_id: str, otherwise: str) -> None:
    assert load(here, env={"BUCKET_ID": text}).settings.bucket == by_id.format(here=here)
    assert load(here, env={"STEPCTL_BUCKET": text}).settings.bucket == otherwise.format(here=here)
    assert load(here, options={"bucket": text}).settings.bucket == otherwise.format(here=here)
    assert load(here, f'bucket = "{text}"').settings.bucket == otherwise.format(here=here)


def test_one_bucket_has_one_name_from_wherever(here: Path) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    names = {load(here, options={"bucket": text}).settings.bucket for text in ("real", "./real", "x/../real", "link")}
    assert names == {str(here / "real")}


def test_the_python_of_a_target_keeps_its_link(here: Path) -> None:
    """A virtual environment's Python is a link; what it points to has not its packages."""
    (here / "python").symlink_to(sys.executable)
    assert load(here, '[targets.local]\npython = "./python"\n').settings.targets["local"].python == str(here / "python")
    assert load(here, '[targets.local]\npython = "python3"\n').settings.targets["local"].python == "python3"


@pytest.mark.parametrize("text", ["main", "other@12"])
def test_init_from_without_a_slash_is_a_lineage(here: Path, text: str) -> None:
    (here / text).mkdir()
    assert load(here, f'init_from = "{text}"').settings.init_from == text


# Targets


def test_targets(here: Path) -> None:
    toml = 'target = "big"\n[targets.big]\nkind = "local"\n[targets.Gpu-1]\nkind = "local"\npython = "py"\n'
    env = {"STEPCTL_TARGETS__GPU_1__PYTHON": "other", "STEPCTL_TARGETS__NEW__KIND": "local"}
    loaded = load(here, toml, env)
    s = loaded.settings
    assert set(s.targets) == {"local", "big", "Gpu-1", "new"}
    assert (s.target, s.targets["Gpu-1"].python, s.targets["big"].python) == ("big", "other", None)
    assert loaded.sources["targets.Gpu-1.python"] == "environment STEPCTL_TARGETS__GPU_1__PYTHON"
    assert loaded.sources["targets.Gpu-1.kind"] == "stepctl.toml"
    assert loaded.sources["targets.local.kind"] == "default"


def test_the_local_target_needs_no_kind(here: Path) -> None:
    assert load(here, "[targets.local]\n").settings.targets == {"local": LocalTarget()}
    assert load(here, env={"STEPCTL_TARGETS__LOCAL__PYTHON": "p"}).settings.targets["local"].python == "p"


# Foreign variables and the token


def test_foreign_variables_warn_and_do_not_break_a_call(here: Path) -> None:
    names = ["STEPCTL_BIN", "STEPCTL_TINY", "STEPCTL_HOME", "STEPCTL_", "STEPCTL_VERSION", "STEPCTL_HF_TOKEN"]
    loaded = load(here, env=dict.fromkeys(names, "hf_secretsecret") | {"STEPCTL_DEBUG": "1", "STEPCTLX": "1"})
    assert len(loaded.warnings) == len(names)
    assert all(any(name in warning for warning in loaded.warnings) for name in names)
    assert not any("secretsecret" in warning for warning in loaded.warnings)


def test_the_token_and_its_older_names(here: Path) -> None:
    env = {"HF_TOKEN": "hf_one", "HUGGING_FACE_HUB_TOKEN": "hf_two", "HUGGINGFACE_HUB_TOKEN": "hf_three"}
    for name, token in list(env.items()):
        loaded = load(here, env=env)
        assert (loaded.hf_token, loaded.hf_token_source) == (token, f"environment {name}")
        assert token not in repr(loaded) + str(loaded) + repr(replace(loaded, warnings=[]))
        del env[name]


def test_the_environment_is_only_what_is_passed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPCTL_LINEAGE", "other")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    loaded = load(here)
    assert (loaded.settings.lineage, loaded.hf_token) == ("main", None)


def test_loading_is_light(here: Path) -> None:
    """No package but msgspec, and nothing that only some calls need."""
    code = (
        "import sys, pathlib; from stepctl.config.load import load_settings; import stepctl.config.describe;"
        "load_settings({}, {}, pathlib.Path.cwd()); print(*sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=here, env=env, capture_output=True, text=True, check=True)
    heavy = {
        "pydantic",
        "rich",
        "typer",
        "difflib",
        "tomllib",
        "torch",
        "huggingface_hub",
        "json",
        "asyncio",
        "tomli_w",
    }
    assert not heavy & set(done.stdout.split())


def test_machines_of_others(here: Path) -> None:
    box = '[targets.box]\nkind = "ssh"\nhost = "b"\nkey = "./id"\nworkdir = "~/w"\npython = "./p"\nenv = {A = "1"}\n'
    pod = '[targets.pod]\nkind = "runpod"\nmax_hours = 2.5\ngpu_types = "auto"\n'
    targets = load(here, box + pod).settings.targets
    assert targets["box"] == SshTarget(
        host="b", key=str(here / "id"), workdir="~/w", python="./p", env={"A": "1"}
    )  # only the key lies here
    assert targets["pod"] == RunpodTarget(max_hours=2.5)
    env = {"STEPCTL_TARGETS__POD__MAX_COST_USD": "3", "STEPCTL_TARGETS__POD__ENV": '{"B": "x"}'}
    changed = load(here, pod, env=env).settings.targets["pod"]
    assert changed == RunpodTarget(max_hours=2.5, max_cost_usd=3.0, env={"B": "x"})
