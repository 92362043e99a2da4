"""``--init-from``: what a new lineage may start from, and what is refused before a job is started."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doubles.project import Project, rows
from tests.doubles.tensors import lora_config, lora_shapes, pack, peft_folder, tensors
from tests.trainer.tiny import build_tiny

from stepctl.base.errors import UsageError
from stepctl.calls.origin import Origin, find_origin, require_fits
from stepctl.calls.peft_folder import read_adapter
from stepctl.config.model import LoraSettings
from stepctl.lineage.buckets import open_bucket
from stepctl.models.resolve import ResolvedModel, resolve_model

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def config_is(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: peft_folder(folder, **changes)


def weights_are(data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / WEIGHTS).write_bytes(data)


def config_file_is(data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / CONFIG).write_bytes(data)


def linked(name: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return change


def huge(name: str) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, 10 * 10**12)


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


def _with(**more: tuple[int, ...]) -> bytes:
    return tensors({**lora_shapes(), **{name.replace("__", "."): shape for name, shape in more.items()}})


def _typed(dtype: str, size: int) -> bytes:
    """An adapter whose numbers have ``size`` bytes."""
    each = 64 * size
    header = {
        name: {"dtype": dtype, "shape": [8, 8], "data_offsets": [i * each, (i + 1) * each]}
        for i, name in enumerate(lora_shapes())
    }
    return pack(header, bytes(each * len(header)))


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "DoRA": (config_is(use_dora=True), "use_dora"),
    "rslora": (config_is(use_rslora=True), "use_rslora"),
    "another type": (config_is(peft_type="IA3"), "peft_type = 'IA3'"),
    "a prompt": (config_file_is(b'{"peft_type": "PROMPT_TUNING"}'), "PROMPT_TUNING"),
    "not LoRA": (config_file_is(b"{}"), "peft_type = None"),
    "another task": (config_is(task_type="SEQ_CLS"), "task_type"),
    "modules_to_save": (config_is(modules_to_save=["lm_head"]), "modules_to_save"),
    "rank_pattern": (config_is(rank_pattern={"q_proj": 4}), "rank_pattern"),
    "alpha_pattern": (config_is(alpha_pattern={"q_proj": 4}), "alpha_pattern"),
    "some layers": (config_is(layers_to_transform=[0]), "layers_to_transform"),
    "biases": (config_is(bias="all"), "bias = 'all'"),
    "PiSSA": (config_is(init_lora_weights="pissa_niter_4"), "init_lora_weights"),
    "a pattern": (config_is(target_modules=".*_proj"), "a pattern"),
    "all-linear": (config_is(target_modules="all-linear"), "a pattern"),
    "no targets": (config_is(target_modules=None), "target_modules"),
    "mixed targets": (config_is(target_modules=["q_proj", 5]), "target_modules"),
    "no rank": (config_is(r=None), "r = None"),
    "rank 0": (config_is(r=0), "r = 0"),
    "a boolean rank": (config_is(r=True), "r = True"),
    "half an alpha": (config_is(lora_alpha=0.5), "lora_alpha = 0.5"),
    "dropout 1": (config_is(lora_dropout=1.0), "lora_dropout"),
    "config is a list": (config_file_is(b"[]"), "not a JSON object"),
    "config is cut": (config_file_is(b'{"peft_type"'), "not JSON"),
    "config is deep": (config_file_is(b"[" * 100_000), "not JSON"),
    "config is a pointer": (config_file_is(LFS), f"{CONFIG} is a Git LFS pointer"),
    "config is empty": (config_file_is(b""), f"{CONFIG} is empty"),
    "config is huge": (huge(CONFIG), f"{CONFIG} has 10000000000000 bytes"),
    "config is a link": (linked(CONFIG), f"{CONFIG} is a link"),
    "no config": (lambda folder: (folder / CONFIG).unlink(), f"no {CONFIG}"),
    "pickle only": (pickled, "adapter_model.bin is a pickle"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"no {WEIGHTS}"),
    "weights are empty": (weights_are(b""), f"{WEIGHTS} is empty"),
    "weights are a pointer": (weights_are(LFS), f"{WEIGHTS} is a Git LFS pointer"),
    "weights are cut": (weights_are(tensors(lora_shapes())[:-20]), f"{WEIGHTS} is cut"),
    "weights are huge": (huge(WEIGHTS), f"{WEIGHTS} has 10000000000000 bytes"),
    "weights are a link": (linked(WEIGHTS), f"{WEIGHTS} is a link"),
    "no tensors": (weights_are(tensors({})), "holds no tensors"),
    "another rank inside": (weights_are(tensors(lora_shapes(r=4))), "has rank 4"),
    "a magnitude": (weights_are(_with(base_model__model__q_proj__lora_magnitude_vector=(8,))), "no LoRA weight"),
    "an untold layer": (weights_are(tensors(lora_shapes(targets=("up_proj",)))), "does not name"),
    "half a pair": (weights_are(tensors(dict(list(lora_shapes().items())[:-1]))), "only one of the two"),
    "float64": (weights_are(_typed("F64", 8)), "F64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_started_from(tmp_path: Path, name: str) -> None:
    change, said = REFUSED[name]
    folder = peft_folder(tmp_path / "adapter")
    change(folder)
    with pytest.raises(UsageError) as error:
        read_adapter(folder)
    assert said in error.value.message
    assert str(folder) in error.value.message
    assert error.value.code == "init_from"


def test_what_can_be_started_from(tmp_path: Path) -> None:
    full = ["model.layers.0.self_attn.q_proj", "k_proj", "v_proj", "o_proj"]
    folder = peft_folder(tmp_path / "adapter", lora_dropout=0.1, lora_alpha=16.0, target_modules=full)
    adapter = read_adapter(folder)
    assert adapter.lora == {"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": tuple(sorted(full))}
    assert len(read_adapter(peft_folder(tmp_path / "half", _typed("BF16", 2))).tensors) == 8


# --- whether it fits --------------------------------------------------------------------------------------------------


def _fits(tmp_path: Path, *, lora: LoraSettings | None = None, commit: str | None = None, **config: Any) -> str | None:
    """What is said of an adapter for a model of hidden size 8 with one layer; None when it fits."""
    folder = peft_folder(tmp_path / "adapter", **config)
    revision = commit or "files:1"
    model = ResolvedModel("org/model", revision, tmp_path, 259, {"hidden_size": 8, "num_hidden_layers": 1})
    adapter = read_adapter(folder)
    try:
        require_fits(Origin("", adapter.lora, folder=folder, adapter=adapter), lora or LoraSettings(), model)
    except UsageError as error:
        return error.message
    return None


def test_the_shape_that_was_asked_for(tmp_path: Path) -> None:
    assert _fits(tmp_path) is None
    assert _fits(tmp_path, lora=LoraSettings(dropout=0.5)) is None
    said = _fits(tmp_path, lora=LoraSettings(r=4, alpha=1, target_modules=("q_proj",))) or ""
    assert "LoRA rank: the adapter has 8, this call asks for 4" in said
    assert "LoRA alpha" in said
    assert "target modules" in said


COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.mark.parametrize(
    ("base", "revision", "commit", "fits"),
    [
        ("org/model", None, COMMIT, True),
        ("org/model", "main", COMMIT, True),
        ("org/model", COMMIT, COMMIT, True),
        ("org/model", OTHER, COMMIT, False),
        ("org/another", None, COMMIT, False),
        ("org/another", None, None, True),  # the model here is a folder: it may be a copy of that one
        ("/no/such/folder", None, COMMIT, True),
        ("/no/such/folder", None, None, True),
        ("./relative", None, COMMIT, True),
        (None, None, COMMIT, True),
        (5, None, COMMIT, True),
    ],
)
def test_the_base_model_it_names(
    tmp_path: Path, base: object, revision: str | None, commit: str | None, fits: bool
) -> None:
    said = _fits(tmp_path, commit=commit, base_model_name_or_path=base, revision=revision)
    assert (said is None) == fits
    assert fits or "base model: the adapter is of" in (said or "")


def test_the_base_models_folder_when_it_is_here(tmp_path: Path, project: Project) -> None:
    model = resolve_model(str(project.model), None, None)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"vocab_size": 7}))
    for base, fits in ((project.model, True), (other, False)):
        folder = peft_folder(tmp_path / "adapter", base_model_name_or_path=str(base))
        adapter = read_adapter(folder)
        origin = Origin("", adapter.lora, folder=folder, adapter=adapter)
        if fits:
            require_fits(origin, LoraSettings(), model)
        else:
            with pytest.raises(UsageError, match="base model: the adapter is of"):
                require_fits(origin, LoraSettings(), model)


@pytest.mark.parametrize("shapes", [lora_shapes(hidden=16), lora_shapes(layers=2)])
def test_shapes_of_another_model(tmp_path: Path, project: Project, shapes: dict[str, tuple[int, ...]]) -> None:
    folder = peft_folder(tmp_path / "adapter", tensors(shapes))
    adapter = read_adapter(folder)
    model = resolve_model(str(project.model), None, None)
    with pytest.raises(UsageError, match="base model"):
        require_fits(Origin("", adapter.lora, folder=folder, adapter=adapter), LoraSettings(), model)


def test_words(tmp_path: Path) -> None:
    bucket = open_bucket(str(tmp_path / "bucket"))
    (tmp_path / "sft").mkdir()
    for word, said in (
        ("/no/such/folder", "is not a folder"),
        ("a b", "neither a lineage nor a folder"),
        ("sft@", "neither"),
        ("sft@x", "neither"),
        ("sft@-1", "neither"),
        ("sft@3", "no checkpoint at step 3"),
        ("sft", "no checkpoint"),
        ("x" * 65, "not usable as a name"),
    ):
        with pytest.raises(UsageError, match=said) as error:
            find_origin(word, bucket, tmp_path)
        if word == "sft":
            assert "./sft" in error.value.next


# --- through the command line -----------------------------------------------------------------------------------------


def test_a_folder_starts_a_lineage(project: Project) -> None:
    """However it is written."""
    peft_folder(project.path / "adapter", tensors(lora_shapes(r=4), b"1234"), r=4, lora_alpha=32)
    word = "./adapter"
    first = project.train(project.trace("a.jsonl", rows(4)), "--init-from", word)
    assert (first["from_step"], first["global_step"]) == (0, 1)
    manifest = json.loads(
        (project.path / "checkpoints/main/checkpoints" / first["checkpoint"] / "manifest.json").read_text()
    )
    assert (manifest["identity"]["r"], manifest["identity"]["alpha"]) == (4, 32)
    # Given again: the same one goes on, another one is refused, and one that is broken now is too.
    assert project.train(project.trace("b.jsonl", rows(4, 20)), "--init-from", "adapter/")["global_step"] == 2
    assert project.train(project.trace("c.jsonl", rows(4, 30)))["global_step"] == 3
    peft_folder(project.path / "adapter", tensors(lora_shapes(r=4), b"4321"), r=4, lora_alpha=32)
    refused = project.train(project.trace("d.jsonl", rows(4, 40)), "--init-from", word, code=4)
    assert refused["error"]["code"] == "identity_differs"
    assert "origin" in refused["error"]["message"]
    again = project.train("d.jsonl", "--init-from", project.path / "adapter", "--fresh")
    assert (again["from_step"], again["global_step"]) == (0, 1)
    project.verify()


def test_not_on_a_lineage_that_started_otherwise(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)))
    peft_folder(project.path / "adapter")
    refused = project.train(project.trace("b.jsonl", rows(4, 20)), "--init-from", "./adapter", code=4)
    assert "the lineage has none" in refused["error"]["message"]


@pytest.mark.parametrize("name", ["DoRA", "pickle only", "weights are cut", "weights are a link"])
def test_a_bad_folder_starts_no_job(project: Project, name: str) -> None:
    change, said = REFUSED[name]
    change(peft_folder(project.path / "adapter"))
    error = project.train(project.trace("a.jsonl", rows(4)), "--init-from", "./adapter", code=2)["error"]
    assert said in error["message"]
    assert not project.runs()
    assert not (project.path / "checkpoints").exists()


def test_settings_that_do_not_fit_start_no_job(project: Project) -> None:
    project.trace("a.jsonl", rows(4))
    peft_folder(project.path / "adapter")
    error = project.train("a.jsonl", "--init-from", "./adapter", env={"LORA_R": "4"}, code=2)["error"]
    assert "LoRA rank" in error["message"]
    peft_folder(project.path / "adapter", tensors(lora_shapes(hidden=64)))
    error = project.train("a.jsonl", "--init-from", "./adapter", code=2)["error"]
    assert "hidden size" in error["message"]
    assert not project.runs()


def test_a_lineage_and_a_step_of_it(project: Project) -> None:
    for i in range(2):
        project.train(project.trace(f"{i}.jsonl", rows(4, 10 * i)), "--lineage", "sft", env={"LORA_R": "4"})
    project.trace("a.jsonl", rows(4, 50))
    project.train("a.jsonl", "--lineage", "one", "--init-from", "sft@1")
    project.train("a.jsonl", "--lineage", "two", "--init-from", "sft")
    project.train("a.jsonl", "--lineage", "again", "--init-from", "sft@2")

    def adapter(lineage: str) -> bytes:
        return next((project.path / "checkpoints" / lineage).rglob("adapter_model.safetensors")).read_bytes()

    assert adapter("one") != adapter("two") == adapter("again")
    answer = json.loads(project.call("lineage", "log", "--lineage", "two", "--json").stdout)
    assert answer["identity"]["r"] == 4
    assert answer["identity"]["origin"]
    error = project.train("a.jsonl", "--lineage", "new", "--init-from", "sft@7", code=2)["error"]
    assert "kept steps: 1, 2" in error["message"]
    error = project.train("a.jsonl", "--lineage", "new", "--init-from", "sft", env={"LORA_R": "8"}, code=2)["error"]
    assert "LoRA rank" in error["message"]


def test_the_base_model_of_the_lineage_is_taken_and_held(project: Project, tmp_path: Path) -> None:
    project.train(project.trace("a.jsonl", rows(4)), "--lineage", "sft")
    toml = project.path / "stepctl.toml"
    toml.write_text(toml.read_text().replace("model = ", "# model = ", 1))
    taken = project.train(project.trace("b.jsonl", rows(4, 20)), "--lineage", "new", "--init-from", "sft")
    assert taken["model"] == str(project.model)
    other = tmp_path / "other"
    import shutil

    shutil.copytree(project.model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "hidden_size": 16}))
    args = ("--lineage", "third", "--init-from", "sft", "--model", "./other")
    error = project.train("b.jsonl", *args, code=2)["error"]
    assert "base model: the adapter is of" in error["message"]


def test_fresh_from_an_earlier_step_of_itself(project: Project) -> None:
    names = [project.train(project.trace(f"{i}.jsonl", rows(4, 10 * i)))["checkpoint"] for i in range(3)]
    new = project.train(project.trace("a.jsonl", rows(4, 60)), "--fresh", "--init-from", "main@2")
    assert (new["from_step"], new["global_step"]) == (0, 1)
    stored = {c["checkpoint"] for c in project.status()["checkpoints"]}
    assert set(names) < stored
    project.verify()


def test_a_damaged_origin_is_said(project: Project) -> None:
    project.train(project.trace("a.jsonl", rows(4)), "--lineage", "sft")
    path = next((project.path / "checkpoints/sft").rglob("adapter_model.safetensors"))
    path.write_bytes(b"x" * path.stat().st_size)
    error = project.train(project.trace("b.jsonl", rows(4, 20)), "--init-from", "sft", code=1)["error"]
    assert WEIGHTS in error["message"]
    assert project.status()["head"] is None


@pytest.mark.torch
def test_what_is_pulled_can_be_started_from(tmp_path: Path) -> None:
    """What the real trainer saves passes the judgement without torch, and starts a lineage in the real trainer."""
    model = build_tiny(tmp_path / "tiny")
    project = Project(tmp_path, model=model)
    project.faults(engine="torch")
    project.train(project.trace("a.jsonl", rows(4)), "--lineage", "sft", env={"LORA_R": "4"})
    done = project.call("lineage", "pull", "out", "--lineage", "sft")
    assert done.returncode == 0, done.stderr
    config = json.loads((project.path / "out" / CONFIG).read_text())
    assert set(lora_config()) <= set(config)
    started = project.train(project.trace("b.jsonl", rows(4, 20)), "--init-from", "./out")
    assert (started["from_step"], started["global_step"]) == (0, 1)
