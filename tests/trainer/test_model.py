"""Base models and targets that cannot be used are refused in a user's words."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from tests.trainer.tiny import Job, make_rows, run

from stepctl.base.errors import Exit, StepctlError
from stepctl.jobs.spec import ModelSpec

pytestmark = pytest.mark.torch


def of(job: Job, source: str | Path, revision: str | None = None) -> Job:
    return Job(msgspec.structs.replace(job.spec, model=ModelSpec(source=str(source), revision=revision)))


def refused(job: Job) -> StepctlError:
    with pytest.raises(StepctlError) as caught:
        job.load()
    return caught.value


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny, tmp_path / "copy")


@pytest.mark.parametrize("targets", [("q_proj", "query"), ("proj",), ("q",)])
def test_target_modules_that_are_not_there(job: Job, targets: tuple[str, ...]) -> None:
    error = refused(job.but(lora={"target_modules": targets}))
    assert f"target module {targets[-1]} is not in the model" in error.message
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in error.message
    assert error.exit_code == Exit.USAGE


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "self_attn", "norm"])
def test_target_modules_that_cannot_carry_an_adapter(job: Job, target: str) -> None:
    assert "cannot carry an adapter" in refused(job.but(lora={"target_modules": (target,)})).message


def test_the_adapter_is_seeded_and_nothing_else_is_trainable(job: Job) -> None:
    import torch

    first, other, again = (job.but(seed=seed).load()._ready()[1] for seed in (1, 2, 1))
    lora_a = next(name for name in first.parameters if "lora_A" in name)
    assert torch.equal(first.parameters[lora_a], again.parameters[lora_a])
    assert not torch.equal(first.parameters[lora_a], other.parameters[lora_a])
    assert len(first.parameters) == 2 * 4 * 2
    trainable = {id(p) for p in first.model.parameters() if p.requires_grad}
    assert trainable == {id(p) for p in first.parameters.values()}


def test_a_folder_that_is_not_there(job: Job, tmp_path: Path) -> None:
    assert "is not a folder" in refused(of(job, tmp_path / "none")).message


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", None, "has no config.json"),
        ("model.safetensors", None, "has no weights"),
        ("model.safetensors", b"", "has an empty model.safetensors"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer in place of"),
        ("model.safetensors", b"\0" * 64, "cannot be loaded"),
        ("config.json", b'{"model_type": "nothing-known"}', "cannot be loaded"),
        ("config.json", b"{", "cannot be loaded"),
    ],
)
def test_a_folder_that_is_no_whole_model(job: Job, copy: Path, file: str, content: bytes | None, said: str) -> None:
    (copy / file).unlink()
    if content is not None:
        (copy / file).write_bytes(content)
    error = refused(of(job, copy))
    assert said in error.message
    assert str(copy) in error.message
    assert error.next


def test_missing_weights_are_never_made_up(job: Job, copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert "is not whole: 1 weights are missing" in refused(of(job, copy)).message


def test_a_model_whose_code_comes_with_it_is_not_run(job: Job, copy: Path, tmp_path: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    error = refused(of(job, copy))
    assert "needs code that its repository carries" in error.message
    assert "trust_remote_code" in error.next
    assert not (tmp_path / "ran").exists()


def test_a_model_with_a_smaller_vocabulary_than_the_lineage(job: Job) -> None:
    identity = msgspec.structs.replace(job.spec.identity, vocab_size=49152)
    error = refused(Job(msgspec.structs.replace(job.spec, identity=identity)))
    assert "has 300 embeddings, and the lineage a vocabulary of 49152" in error.message


class _Hub(BaseHTTPRequestHandler):
    """Answers every request with the error the repository's name asks for, as the Hub does."""

    def do_HEAD(self) -> None:
        code, kind = {
            "gated": (403, "GatedRepo"),
            "absent": (401, "RepoNotFound"),
            "norevision": (404, "RevisionNotFound"),
        }[self.path.split("/")[2]]
        self.send_response(code)
        self.send_header("X-Error-Code", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _point_to(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield
    server.shutdown()
    server.server_close()
    thread.join()


def _point_to(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("gated", "is gated", "model_gated"),
        ("absent", "is not on the Hub, or private", "model_not_found"),
        ("norevision", "has no revision 0123", "usage"),
    ],
)
def test_what_the_hub_refuses(job: Job, hub: None, name: str, said: str, code: str) -> None:
    error = refused(of(job, f"someone/{name}", "0123"))
    assert said in error.message
    assert (error.code, error.exit_code) == (code, Exit.USAGE)
    assert error.next


def test_a_hub_that_cannot_be_reached(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    _point_to(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the client waits between its tries
    error = refused(of(job, "someone/never-cached"))
    assert "not in the local cache, and the Hub cannot be reached" in error.message
    assert "--model /path/to/a/folder" in error.next


def test_a_token_is_never_in_an_error(job: Job, hub: None) -> None:
    from stepctl.trainer.torch_engine import TorchEngine

    engine = TorchEngine()
    engine.imports("sft")
    with pytest.raises(StepctlError) as caught:
        engine.load(of(job, "someone/gated").spec, "hf_secretsecret")
    assert "hf_secretsecret" not in f"{caught.value.message}{caught.value.next}{caught.value.__cause__}"


def test_a_model_of_another_kind_learns_too(job: Job, tmp_path: Path) -> None:
    """GPT-2's layers are Conv1D, stored transposed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=1, n_head=2)).save_pretrained(
        tmp_path / "gpt2"
    )
    engine, rows = of(job, tmp_path / "gpt2").but(lora={"target_modules": ("c_attn",)}).load(), make_rows(4)
    before = engine.evaluate(rows)
    for step in range(5):
        run(engine, rows, step)
    assert engine.evaluate(rows) < before
