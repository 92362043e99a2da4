"""One request in, one line out."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.trainer.tiny import Job, build_tiny, run

from stepctl.jobs.spec import ModelSpec
from stepctl.traces.rows import SftRow
from stepctl.trainer.complete import serve

pytestmark = pytest.mark.torch


def ask(**request: Any) -> tuple[int, dict[str, Any]]:
    out = io.BytesIO()
    code = serve(io.BytesIO(json.dumps(request).encode()), out)
    (line,) = out.getvalue().splitlines()
    return code, json.loads(line)


def ids(tiny: Path, text: str) -> list[int]:
    from transformers import AutoTokenizer

    found: list[int] = AutoTokenizer.from_pretrained(tiny)(text)["input_ids"]
    return found


def test_an_adapter_answers_what_it_was_taught_and_stops(job: Job, tmp_path: Path) -> None:
    # Weights as small as usual leave a model this small without an opinion to change.
    tiny = build_tiny(tmp_path / "wide", spread=0.3)
    prompt, reply = "<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n", "four<|im_end|>"
    start, end = ids(tiny, prompt), ids(tiny, reply)
    row = SftRow(file="t", line=1, input_ids=start + end, labels=[-100] * len(start) + end)
    targets = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    spec = msgspec.structs.replace(job.spec, model=ModelSpec(source=str(tiny)))
    engine = Job(spec).but(grad_accum=1, lora={"target_modules": targets}).load()
    losses = [step.loss for step in run(engine, [row] * 60)]
    assert losses[-1] < 0.1
    engine.save(tmp_path / "adapter")
    request = {"model": {"source": str(tiny)}, "prompt": "two?", "max_new_tokens": 20, "device": "cpu", "chat": True}
    code, answer = ask(**request, adapter=str(tmp_path / "adapter"))
    assert (code, answer) == (0, {"text": "four", "tokens": len(ids(tiny, "four<|im_end|>")), "device": "cpu"})
    code, plain = ask(**request, adapter=None)
    assert code == 0
    assert plain["text"] != "four"


def test_sampling_follows_the_seed(tiny: Path) -> None:
    def at(seed: int) -> str:
        request = {"model": {"source": str(tiny)}, "prompt": "two?", "max_new_tokens": 16, "device": "cpu"}
        return str(ask(**request, temperature=1.5, seed=seed)[1]["text"])

    assert at(1) == at(1)
    assert len({at(seed) for seed in range(4)}) > 1


def test_without_chat_or_without_a_template_the_prompt_goes_in_as_it_is(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    bare = build_tiny(tmp_path / "bare", template=None)
    seen = []
    generate = LlamaForCausalLM.generate

    def watch(self: Any, input_ids: Any, **kwargs: Any) -> Any:
        seen.append(input_ids[0].tolist())
        return generate(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "generate", watch)
    for source, chat in ((bare, True), (tiny, False), (tiny, True)):
        request = {"model": {"source": str(source)}, "prompt": "two?", "max_new_tokens": 1, "device": "cpu"}
        assert ask(**request, chat=chat)[0] == 0
    turn = "<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n"
    assert seen == [ids(tiny, "two?"), ids(tiny, "two?"), ids(tiny, turn)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": {"source": "/nowhere/model"}}, "is not a folder"),
        ({"adapter": "/nowhere/adapter"}, "adapter_config.json is missing"),
        ({"device": "cuda:77"}, "device cuda:77 is not there"),
        ({"prompt": "", "chat": False}, "the prompt is empty"),
        ({"max_new_tokens": 4000}, "and the model takes 256"),
        ({"max_new_tokens": 0}, "the request cannot be read"),
        ({"unknown": 1}, "the request cannot be read"),
    ],
)
def test_errors_are_one_line_too(tiny: Path, changed: dict[str, Any], said: str) -> None:
    request = {"model": {"source": str(tiny)}, "prompt": "two?", "device": "cpu", "max_new_tokens": 4, **changed}
    code, answer = ask(**request)
    assert code == 1
    assert said in answer["error"]["message"]
    assert answer["error"].keys() == {"message", "next"}


def test_an_adapter_of_another_model_is_refused(job: Job, tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    job.load().save(tmp_path)
    content = load_file(tmp_path / "adapter_model.safetensors")
    wide = {n: t.repeat(1, 2) if "lora_A" in n else t for n, t in content.items()}
    save_file(wide, tmp_path / "adapter_model.safetensors")
    code, answer = ask(model={"source": str(tiny)}, prompt="two?", device="cpu", adapter=str(tmp_path))
    assert code == 1
    assert "has shape [4, 64], the model needs [4, 32]" in answer["error"]["message"]


def test_both_small_programs_as_processes(tiny: Path) -> None:
    """One line on stdout each, and nothing else, though libraries print."""
    request = {"model": {"source": str(tiny)}, "prompt": "two?", "max_new_tokens": 4, "device": "cpu"}
    children = {
        name: subprocess.Popen(
            [sys.executable, "-m", f"stepctl.trainer.{name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(Path(sys.modules["stepctl"].__file__ or "").parents[1]), "PATH": "/usr/bin:/bin"},
        )
        for name in ("complete", "probe")
    }
    outputs = {}
    for name, child in children.items():
        out, _ = child.communicate(json.dumps(request).encode(), timeout=120)
        assert child.returncode == 0, out
        (line,) = out.splitlines()
        outputs[name] = json.loads(line)
    assert outputs["complete"].keys() == {"text", "tokens", "device"}
    found = outputs["probe"]
    assert found["packages"].keys() == {"torch", "transformers", "trl", "peft", "datasets"}
    assert found["errors"] == {}
    assert found["threads"] >= 1
    assert found["bf16_speed"] > 0
    assert found["reason"]


def test_a_package_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepctl.trainer import probe

    monkeypatch.setitem(sys.modules, "peft", None)  # type: ignore[arg-type]
    found = probe.probe()
    assert list(found.errors) == ["peft"]
    assert "peft" in found.errors["peft"]
    assert found.device is not None
