"""DPO and KTO: the reference, TRL's own loss, weights, dropout, one process and many."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.trainer.test_gradients import gradients, warm
from tests.trainer.tiny import Job, make_rows, run

from stepctl.base.errors import DamagedCheckpoint
from stepctl.base.files import sha256_file
from stepctl.traces.rows import KtoRow
from stepctl.trainer.torch_engine import TorchEngine

pytestmark = pytest.mark.torch

START = {"dpo": math.log(2), "kto": 0.5}
"""The loss where policy and reference are the same."""
REFERENCE = "reference.safetensors"


@pytest.fixture
def sft(job: Job, tmp_path: Path) -> Path:
    """An adapter that supervised fine-tuning made."""
    engine = job.load()
    run(engine, make_rows(8))
    engine.save(tmp_path / "sft")
    return tmp_path / "sft"


def started(job: Job, adapter: Path) -> TorchEngine:
    engine = job.load()
    engine.init_from(adapter)
    return engine


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_the_base_model_is_the_reference_of_a_lineage_that_starts_from_it(job: Job, method: str) -> None:
    steps = run(job.by(method).load(), make_rows(4, method=method))
    assert steps[0].loss == pytest.approx(START[method], abs=1e-6)
    rows = make_rows(8, method=method)
    assert run(job.by(method).but(lora={"dropout": 0.3}).load(), rows)[0].loss == pytest.approx(START[method], abs=1e-6)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_the_adapter_a_lineage_started_from_is_its_reference(job: Job, sft: Path, method: str) -> None:
    job = job.by(method, origin="sha").but(grad_accum=2)
    engine = started(job, sft)
    rows = make_rows(6, method=method)
    steps = run(engine, rows)
    assert steps[0].loss == pytest.approx(START[method], abs=1e-6)
    assert steps[-1].loss != pytest.approx(START[method], abs=1e-4)
    # Against the base model as the reference the very same policy loses something else.
    wrong = started(job, sft)
    wrong._ready()[1].reference = None
    assert run(wrong, rows)[0].loss != pytest.approx(START[method], abs=1e-4)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_each_checkpoint_holds_the_reference_and_a_resumed_call_compares_with_it(
    job: Job, sft: Path, tmp_path: Path, method: str
) -> None:
    from safetensors.torch import load_file

    job = job.by(method, origin="sha").but(grad_accum=2)
    engine = started(job, sft)
    run(engine, make_rows(6, method=method))
    engine.save(tmp_path / "c")
    held = load_file(tmp_path / "c" / REFERENCE)
    first = load_file(sft / "adapter_model.safetensors")
    assert held.keys() == first.keys()
    assert all(bool((held[name] == first[name]).all()) for name in held)
    again = job.restored(tmp_path / "c", 3)
    # The reference is where the lineage began, not where this call begins: the held-out loss goes on from there.
    rows = make_rows(4, seed=3, method=method)
    assert again.evaluate(rows) == engine.evaluate(rows) != pytest.approx(START[method], abs=1e-4)
    run(again, rows, 3)
    again.save(tmp_path / "d")
    assert sha256_file(tmp_path / "d" / REFERENCE) == sha256_file(tmp_path / "c" / REFERENCE)


def test_a_lineage_from_the_base_model_holds_no_reference(job: Job, tmp_path: Path, sft: Path) -> None:
    engine = job.by("dpo").load()
    run(engine, make_rows(2, method="dpo"))
    engine.save(tmp_path / "c")
    assert not (tmp_path / "c" / REFERENCE).exists()
    # Nor does SFT from an adapter: it compares with nothing.
    engine = started(job.by("sft", origin="sha"), sft)
    run(engine, make_rows(2))
    engine.save(tmp_path / "s")
    assert not (tmp_path / "s" / REFERENCE).exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "reference.safetensors is missing"),
        (lambda path: path.write_bytes(b""), "reference.safetensors is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), "reference.safetensors is cut"),
    ],
)
def test_a_lost_reference_is_refused_never_replaced(job: Job, sft: Path, tmp_path: Path, spoil: Any, said: str) -> None:
    job = job.by("dpo", origin="sha")
    engine = started(job, sft)
    run(engine, make_rows(2, method="dpo"))
    engine.save(tmp_path / "c")
    spoil(tmp_path / "c" / REFERENCE)
    with pytest.raises(DamagedCheckpoint, match=said):
        job.restored(tmp_path / "c", 1)


def trl_batch(rows: list[Any], method: str, max_length: int | None = None) -> Any:
    """The rows as the collators of TRL take them, in one batch, cut there."""
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

    def parts(text: Any) -> tuple[list[int], list[int]]:
        start = next(i for i, label in enumerate(text.labels) if label != -100)
        return text.input_ids[:start], text.input_ids[start:]

    if method == "dpo":
        pairs = [(parts(row.chosen), parts(row.rejected)) for row in rows]
        examples = [{"prompt_ids": c[0], "chosen_ids": c[1], "rejected_ids": r[1]} for c, r in pairs]
        return DataCollatorForPreference(pad_token_id=0)(examples)
    split = [parts(row) for row in rows]
    examples = [
        {"prompt_ids": p, "completion_ids": c, "KL_completion_ids": split[i - 1][1], "label": rows[i].desirable}
        for i, (p, c) in enumerate(split)
    ]
    return DataCollatorForUnpairedPreference(pad_token_id=0, max_length=max_length)(examples)


@pytest.mark.parametrize("method", ["dpo", "kto"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_loss_and_gradient_are_those_of_trl_with_the_group_as_one_batch(
    job: Job, tmp_path: Path, method: str, size: int
) -> None:
    import torch

    from stepctl.trainer.loop import _unpatched
    from stepctl.trainer.stepping import configuration, dataset, make_trainer, no_tokenizer

    job = job.but(grad_accum=size, max_grad_norm=1e6, beta=0.2, desirable_weight=1.5, undesirable_weight=0.5)
    rows = make_rows(size, seed=10 + size, method=method)
    engine = warm(job, tmp_path / "warm", method)
    _, trainable, made = engine._ready()
    trainable.reference = None  # TRL's is the base model
    made.options.update({"desirable_weight": 1.5, "undesirable_weight": 0.5} if method == "kto" else {})
    with _unpatched(trainable.model):
        trainer = make_trainer(
            made,
            None,
            model=trainable.model,
            args=configuration(made, trainable.placement, 1, 1, str(tmp_path)),
            train_dataset=dataset(1),
            processing_class=no_tokenizer(),
            data_collator=lambda examples: examples,
        )
        theirs = made.trainer.compute_loss(trainer, trainable.model, trl_batch(rows, method))
        theirs.backward()
        wanted = {name: p.grad.clone() for name, p in trainable.parameters.items()}
    loss, found = gradients(engine, rows)
    assert loss == pytest.approx(float(theirs), rel=1e-5)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=float(wanted[name].abs().max()) * 1e-4)


def test_only_beta_and_the_weights_that_are_set_matter(job: Job, tmp_path: Path) -> None:
    rows = make_rows(3, seed=2, method="kto")
    engines = {
        name: warm(job.but(grad_accum=3, **changes), tmp_path / "warm", "kto")
        for name, changes in {"plain": {}, "beta": {"beta": 0.5}, "weight": {"undesirable_weight": 2.0}}.items()
    }
    losses = {name: engine.evaluate(rows) for name, engine in engines.items()}
    assert len(set(losses.values())) == 3
    desirable = [row for row in rows if row.desirable]
    assert engines["weight"].evaluate(desirable) == engines["plain"].evaluate(desirable)


def test_the_held_out_loss_of_kto_is_by_groups_in_file_order(job: Job, tmp_path: Path) -> None:
    engine = warm(job.but(grad_accum=2), tmp_path / "warm", "kto")
    rows = make_rows(5, seed=6, method="kto")
    groups = [rows[0:2], rows[2:4], rows[4:]]
    assert engine.evaluate(rows) == pytest.approx(sum(engine.evaluate(g) * len(g) for g in groups) / 5, rel=1e-6)


def test_the_mismatched_texts_are_those_of_trl_of_rows_that_are_cut_too() -> None:
    """A completion that is cut behind its own prompt may be whole, or longer, behind a shorter one."""
    from stepctl.trainer.methods.kto import mismatched

    def cut(row: KtoRow, n: int) -> KtoRow:
        ids, labels, rest = row.input_ids[:n], row.labels[:n], row.input_ids[n:]
        return msgspec.structs.replace(row, input_ids=ids, labels=labels, cut=len(rest), rest=rest)

    whole, n = make_rows(6, seed=1, method="kto"), 12
    rows = [cut(row, n) for row in whole]
    assert any(len(rows[i - 1].rest) and len(mismatched(row, rows[i - 1], n).labels) == n for i, row in enumerate(rows))
    batch = trl_batch(whole, "kto", n)
    for i, row in enumerate(rows):
        text = mismatched(row, rows[i - 1], n)
        length = int(batch["KL_attention_mask"][i].sum())
        assert text.input_ids == batch["KL_input_ids"][i, :length].tolist()
        assert [int(label != -100) for label in text.labels] == batch["KL_completion_mask"][i, :length].tolist()
        assert all(label in (-100, token) for label, token in zip(text.labels, text.input_ids, strict=True))


def test_dropout_is_in_the_adapter_of_the_policy_alone(job: Job, sft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepctl.trainer import scoring

    seen: list[tuple[bool, set[str]]] = []
    real = scoring.nll

    def watch(model: Any, *args: Any) -> Any:
        import torch

        on = {name for name, module in model.named_modules() if module.training}
        seen.append((torch.is_grad_enabled(), on))
        return real(model, *args)

    monkeypatch.setattr(scoring, "nll", watch)
    run(started(job.by("kto", "sha").but(lora={"dropout": 0.2}, grad_accum=2), sft), make_rows(2, method="kto"))
    assert len(seen) == 8
    for grad, on in seen:
        assert bool(on) is grad
        assert all(".lora_dropout" in name for name in on)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_a_second_call_in_the_same_process_has_the_same_reference(job: Job, sft: Path, method: str) -> None:
    """TRL would add its adapter ``ref`` again, and fail; or copy the trained policy, and compare with that."""
    job, rows = job.by(method, origin="sha").but(grad_accum=2), make_rows(8, method=method)
    whole = [s.loss for s in run(started(job, sft), rows)]
    engine = started(job, sft)
    parts = [s.loss for s in (*run(engine, rows[:4]), *run(engine, rows[4:], 2))]
    assert parts == whole
    model = engine._ready()[1].model
    assert list(model.peft_config) == ["default"]
    assert not [name for name, _ in model.named_parameters() if ".ref." in name]
    other = started(job, sft)
    assert run(other, rows[:2])[0].loss == pytest.approx(START[method], abs=1e-6)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_a_reference_adapter_is_the_same_over_resumed_calls_bit_for_bit(
    job: Job, sft: Path, tmp_path: Path, method: str
) -> None:
    job, rows = job.by(method, origin="sha").but(grad_accum=2, lora={"dropout": 0.1}), make_rows(8, method=method)
    whole = started(job, sft)
    losses = [step.loss for step in run(whole, rows)]
    whole.save(tmp_path / "whole")
    engine, parts = started(job, sft), []
    for step in (0, 1, 3):
        if step:
            engine.save(tmp_path / str(step))
            engine = job.restored(tmp_path / str(step), step)
        parts += [made.loss for made in run(engine, rows[2 * step : {0: 2, 1: 6, 3: 8}[step]], step)]
    engine.save(tmp_path / "parts")
    assert parts == losses
    for path in (tmp_path / "whole").iterdir():
        assert sha256_file(path) == sha256_file(tmp_path / "parts" / path.name), path.name


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_only_the_adapter_moves_and_stays_trainable(job: Job, sft: Path, method: str) -> None:
    import torch

    engine = started(job.by(method, "sha"), sft)
    trainable = engine._ready()[1]
    before = {name: p.detach().clone() for name, p in trainable.model.named_parameters()}
    held = {name: tensor.clone() for name, tensor in trainable.reference.items()}
    run(engine, make_rows(4, method=method))
    moved = {n for n, p in trainable.model.named_parameters() if not torch.equal(p.detach(), before[n])}
    assert moved
    assert all(".lora_" in name for name in moved)
    assert all(p.requires_grad for p in trainable.parameters.values())
    assert all(torch.equal(held[name], tensor) for name, tensor in trainable.reference.items())


def test_rows_of_another_method_are_not_silently_trained(job: Job) -> None:
    with pytest.raises(AssertionError):
        run(job.by("dpo").load(), [msgspec.structs.replace(row) for row in make_rows(1, method="kto")])
