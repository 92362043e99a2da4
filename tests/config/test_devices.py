"""``train.device`` and ``train.gpu_ids``: judged when settings are read, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepctl.base.errors import Exit, UsageError
from stepctl.config.load import Loaded, load_settings


def load(here: Path, env: dict[str, str] | None = None, toml: str = "", **options: Any) -> Loaded:
    (here / "stepctl.toml").write_text(f"[train]\n{toml}")
    return load_settings({name.replace("__", "."): value for name, value in options.items()}, env or {}, here)


def refused(*args: Any, **kw: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(*args, **kw)
    assert caught.value.exit_code == Exit.USAGE
    return caught.value


@pytest.mark.parametrize("word", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_the_words_of_a_device(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, {"STEPCTL_TRAIN__DEVICE": word}).settings.train.device == word


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpu", "cuda"),
        ("GPU:1", "cuda:1"),
        ("gpu0", "cuda:0"),
        ("CUDA", "cuda"),
        ("cuda:", None),
        ("cuda:-1", None),
        ("cuda:0x", None),
        ("cuda:٣", None),
        ("CPU", "cpu"),
        ("autos", "auto"),
        ("mps", None),
        ("zzz", None),
    ],
)
def test_another_word_is_refused_at_once_with_the_nearest(tmp_path: Path, word: str, meant: str | None) -> None:
    error = refused(tmp_path, toml=f'device = "{word}"')
    assert error.message.startswith('train.device must be "auto", "cpu", "cuda" or "cuda:N"; ')
    assert meant is None or error.message.endswith(f"did you mean {meant}?")
    assert meant is not None or word.startswith("cuda") or "did you mean" not in error.message


@pytest.mark.parametrize("text", ["0,2", " 0, 2 ", "[0, 2]"])
def test_gpus_of_an_option_and_of_the_environment(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, {"STEPCTL_TRAIN__GPU_IDS": text}).settings.train.gpu_ids == (0, 2)
    loaded = load(tmp_path, {"STEPCTL_TRAIN__GPU_IDS": "5"}, train__gpu_ids=text)
    assert (loaded.settings.train.gpu_ids, loaded.sources["train.gpu_ids"]) == ((0, 2), "option")


def test_no_gpus_are_all_of_them(tmp_path: Path) -> None:
    assert load(tmp_path).settings.train.gpu_ids == ()
    assert load(tmp_path, toml="gpu_ids = []").settings.train.gpu_ids == ()
    assert load(tmp_path, {"STEPCTL_TRAIN__GPU_IDS": ""}, toml="gpu_ids = [1]").settings.train.gpu_ids == (1,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,0", "names 0 twice"),
        ("-1", "a list of whole numbers, at least 0"),
        ("a", "a list of whole numbers"),
        ("0,", "a list of whole numbers"),
        ("[0", "a list of whole numbers"),
        ("[0.5]", "a list of whole numbers"),
        ("[true]", "a list of whole numbers"),
        ('["0"]', "a list of whole numbers"),
        ("[0, [1]]", "a list of whole numbers"),
        ("9" * 80, "a list of whole numbers"),
        ("[" + "9" * 80 + "]", "a list of whole numbers"),
    ],
)
def test_what_is_no_list_of_gpus(tmp_path: Path, text: str, said: str) -> None:
    error = refused(tmp_path, {"STEPCTL_TRAIN__GPU_IDS": text})
    assert said in error.message
    assert "STEPCTL_TRAIN__GPU_IDS" in error.message


def test_numbers_as_text_in_the_file_are_no_numbers(tmp_path: Path) -> None:
    assert "a list of whole numbers" in refused(tmp_path, toml='gpu_ids = ["0"]').message
    assert "a list of whole numbers" in refused(tmp_path, toml="gpu_ids = 0").message


@pytest.mark.parametrize(
    ("device", "said"), [("cpu", "lists GPUs"), ("cuda:3", "does not list 3"), ("cuda:0", "does not list 0")]
)
def test_a_device_that_is_not_among_the_gpus(tmp_path: Path, device: str, said: str) -> None:
    error = refused(tmp_path, toml=f'device = "{device}"\ngpu_ids = [1, 2]')
    assert said in error.message
    assert error.next


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_a_device_that_is_among_the_gpus(tmp_path: Path, device: str) -> None:
    assert load(tmp_path, toml=f'device = "{device}"\ngpu_ids = [2, 1]').settings.train.gpu_ids == (2, 1)
