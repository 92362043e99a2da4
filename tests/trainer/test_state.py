"""What a checkpoint holds, and that one which does not fit is named and never trained on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.trainer.tiny import Job, make_rows, run

from stepctl.base.errors import DamagedCheckpoint, Exit, StepctlError

pytestmark = pytest.mark.torch

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
OPTIMIZER, STATE = "optimizer.safetensors", "trainer_state.json"


@pytest.fixture
def checkpoint(job: Job, tmp_path: Path) -> Path:
    """A checkpoint at step 2."""
    engine = job.but(grad_accum=2).load()
    run(engine, make_rows(4))
    engine.save(tmp_path / "c")
    return tmp_path / "c"


def tensors(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        from safetensors.torch import load_file, save_file

        content = load_file(path)
        change(content)
        save_file(content, path)

    return apply


def edited(**values: object) -> Callable[[Path], None]:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **values})) and None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 14\n")


def first_to(value: float) -> Callable[[dict], None]:
    return lambda content: next(iter(content.values())).view(-1)[:1].fill_(value) and None


DAMAGE = [
    (ADAPTER, Path.unlink, "is missing"),
    (OPTIMIZER, Path.unlink, "is missing"),
    (STATE, Path.unlink, "is missing"),
    (CONFIG, Path.unlink, "is missing"),
    (ADAPTER, lambda p: p.write_bytes(b""), "is empty"),
    (OPTIMIZER, lambda p: p.write_bytes(b""), "is empty"),
    (ADAPTER, cut, "is cut or no safetensors file"),
    (OPTIMIZER, cut, "is cut or no safetensors file"),
    (OPTIMIZER, lambda p: p.write_bytes(b"\x80\x04K\x01."), "is cut or no safetensors file"),
    (ADAPTER, pointer, "Git LFS pointer"),
    (OPTIMIZER, pointer, "Git LFS pointer"),
    (CONFIG, pointer, "Git LFS pointer"),
    (
        ADAPTER,
        tensors(lambda c: c.pop(min(c))),
        "holds 15 tensors, and the adapter has 16 trainable ones; missing in the file: model.layers.0.self_attn.k_proj",
    ),
    (
        ADAPTER,
        tensors(lambda c: c.update(other=c[min(c)].clone())),
        "holds 17 tensors, and the adapter has 16 trainable ones; not in the adapter: other",
    ),
    (
        OPTIMIZER,
        tensors(lambda c: c.pop(min(c))),
        "holds 16 tensors, and the adapter has 16 trainable ones; missing in the file: model.layers.0",
    ),
    (ADAPTER, tensors(lambda c: c.update({min(c): c[min(c)][:2].clone()})), r"has shape \[2, 32\], the model needs"),
    (ADAPTER, tensors(lambda c: c.update({min(c): c[min(c)].half()})), "is torch.float16, not float32"),
    (ADAPTER, tensors(first_to(float("nan"))), "holds a value that is not finite"),
    (OPTIMIZER, tensors(first_to(float("inf"))), "holds a value that is not finite"),
    (OPTIMIZER, tensors(lambda c: c[min(k for k in c if k.endswith("step"))].fill_(1)), "is of another step than 2"),
    (STATE, edited(step=3), "is of step 3, the manifest of step 2"),
    (STATE, edited(rng="dice"), "another release"),
    (STATE, lambda p: p.write_text("{"), "cannot be read"),
    (CONFIG, lambda p: p.write_text("["), "is not JSON"),
    (CONFIG, edited(r=8), "r = 8, and 4 is asked for"),
    (CONFIG, edited(lora_alpha=32), "lora_alpha = 32, and 8 is asked for"),
    (CONFIG, edited(lora_dropout=0.5), "lora_dropout = 0.5"),
    (CONFIG, edited(target_modules=["q_proj"]), r"target_modules = \['q_proj'\]"),
    (CONFIG, edited(use_rslora=True), "use_rslora"),
]


@pytest.mark.parametrize(("file", "damage", "said"), DAMAGE, ids=lambda v: v if isinstance(v, str) else "")
def test_what_does_not_fit_is_named_and_changes_nothing(
    job: Job, checkpoint: Path, file: str, damage: Callable[[Path], None], said: str
) -> None:
    engine = job.load()
    trainable = engine._ready()[1]
    before = {name: p.detach().clone() for name, p in trainable.parameters.items()}
    damage(checkpoint / file)
    with pytest.raises(DamagedCheckpoint, match=said) as caught:
        engine.restore(checkpoint, job.manifest(2))
    assert file in caught.value.message
    assert caught.value.next
    assert "size mismatch" not in caught.value.message
    assert all(bool((p == before[name]).all()) for name, p in trainable.parameters.items())
    assert (trainable.step, len(trainable.optimizer.state)) == (0, 0)


def test_another_rank_and_other_targets_are_refused(job: Job, checkpoint: Path) -> None:
    for other in (job.but(lora={"r": 2}), job.but(lora={"target_modules": ("q_proj", "up_proj")})):
        with pytest.raises(DamagedCheckpoint, match=CONFIG):
            other.restored(checkpoint, 2)


def test_a_checkpoint_of_a_smaller_model_is_refused_in_counts(job: Job, checkpoint: Path) -> None:
    tensors(lambda c: [c.pop(k) for k in list(c) if "layers.1." in k])(checkpoint / ADAPTER)
    with pytest.raises(
        DamagedCheckpoint,
        match=r"holds 8 tensors, and the adapter has 16 trainable ones; missing in the file: model\.layers\.1",
    ):
        job.restored(checkpoint, 2)


def test_the_files_are_those_that_peft_loads(job: Job, checkpoint: Path, tiny: Path) -> None:
    import torch
    from peft import PeftModel
    from peft.utils import get_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    assert sorted(p.name for p in checkpoint.iterdir()) == [CONFIG, ADAPTER, OPTIMIZER, STATE]
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), str(checkpoint))
    own = load_file(checkpoint / ADAPTER)
    theirs = get_peft_model_state_dict(model, save_embedding_layers=False)
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    restored = job.restored(checkpoint, 2)
    ids = torch.tensor([make_rows(1)[0].input_ids])
    with torch.no_grad():
        ours = restored._ready()[1].model.eval()(input_ids=ids).logits
        assert torch.equal(model.eval()(input_ids=ids).logits, ours)
    config = json.loads((checkpoint / CONFIG).read_text())
    assert config["base_model_name_or_path"] == str(tiny)
    assert config["target_modules"] == sorted(config["target_modules"])
    assert (config["peft_type"], config["task_type"], config["bias"]) == ("LORA", "CAUSAL_LM", "none")


def test_the_trainer_state_says_how_the_last_step_was_made(checkpoint: Path) -> None:
    state = json.loads((checkpoint / STATE).read_text())
    assert (state["step"], state["seed"]) == (2, 7)
    assert state["scheduler"] == {"name": "constant", "last_epoch": 2}
    assert state["optimizer"]["learning_rate"] == 1e-2


def test_step_zero_is_saved_and_restored_as_a_fresh_start(job: Job, tmp_path: Path) -> None:
    job.load().save(tmp_path / "zero")
    engine = job.restored(tmp_path / "zero", 0)
    assert [s.loss for s in run(engine, make_rows(8))] == [s.loss for s in run(job.load(), make_rows(8))]


def test_init_from_takes_the_adapter_and_leaves_the_moments_fresh(job: Job, checkpoint: Path) -> None:
    for name in (OPTIMIZER, STATE):
        (checkpoint / name).unlink()
    held = make_rows(3, seed=5)
    engine = job.load()
    fresh = engine.evaluate(held)
    engine.init_from(checkpoint)
    assert engine.evaluate(held) != fresh
    assert len(engine._ready()[1].optimizer.state) == 0
    assert run(engine, make_rows(2))[0].step == 1


def test_init_from_takes_an_adapter_of_peft_itself_in_half_precision(job: Job, tiny: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(job.spec.lora.target_modules), task_type="CAUSAL_LM")
    config.init_lora_weights = False
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), config).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "peft")
    engine = job.load()
    engine.init_from(tmp_path / "peft")
    name, parameter = next(iter(engine._ready()[1].parameters.items()))
    expected = dict(theirs.named_parameters())[name.replace(".weight", ".default.weight")]
    assert torch.equal(parameter, expected.float())


def test_init_from_refuses_a_pickle_by_name(job: Job, checkpoint: Path) -> None:
    (checkpoint / ADAPTER).rename(checkpoint / "adapter_model.bin")
    with pytest.raises(StepctlError, match=r"adapter_model.bin is a pickle") as caught:
        job.load().init_from(checkpoint)
    assert caught.value.exit_code == Exit.USAGE


# An adapter from elsewhere may have had another dropout or precision.
FOREIGN = [d for d in DAMAGE if d[0] in (ADAPTER, CONFIG) and "dropout" not in d[2] and "float16" not in d[2]]


@pytest.mark.parametrize(("file", "damage", "said"), FOREIGN, ids=lambda v: v if isinstance(v, str) else "")
def test_init_from_refuses_what_does_not_fit(
    job: Job, checkpoint: Path, file: str, damage: Callable[[Path], None], said: str
) -> None:
    damage(checkpoint / file)
    with pytest.raises(StepctlError, match=said):
        job.load().init_from(checkpoint)


def test_init_from_a_folder_that_is_not_there(job: Job, tmp_path: Path) -> None:
    with pytest.raises(StepctlError, match=r"adapter_config\.json is missing"):
        job.load().init_from(tmp_path / "nowhere")


def test_nothing_is_unpickled(job: Job, checkpoint: Path, tmp_path: Path) -> None:
    """A pickle beside the files is not looked at."""
    other = shutil.copytree(checkpoint, tmp_path / "other")
    bomb = b"cos\n_exit\n(I1\ntR."
    for name in ("optimizer.pt", "adapter_model.bin", "rng_state.pth", "training_args.bin", "scheduler.pt"):
        (other / name).write_bytes(bomb)
    job.restored(other, 2)
    job.load().init_from(other)
