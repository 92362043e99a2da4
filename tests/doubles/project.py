"""A scratch project in which the installed command line is called as a user would, with the stand-in for a trainer."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tokenizer_folder(folder: Path) -> Path:
    """A model's folder as far as the command line looks: byte tokens, ChatML, no weights."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    raw.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 259, "hidden_size": 8, "num_hidden_layers": 1}))
    return folder


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Chat rows; no two are the same."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {i} plus {i}?"},
                {"role": "assistant", "content": f"{i} plus {i} is {2 * i}."},
            ]
        }
        for i in range(start, start + count)
    ]


class Project:
    """A folder with a stepctl.toml, a home of its own, and a clean environment."""

    def __init__(self, folder: Path, model: Path | None = None, toml: str = "") -> None:
        self.path = folder
        self.model = model or tokenizer_folder(folder / "model")
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/tests/doubles/standin.py" "$@"\n')
        python.chmod(0o755)
        target = f'[targets.local]\nkind = "local"\npython = "{python}"\n'
        (folder / "stepctl.toml").write_text(f'model = "{self.model}"\n{toml}\n{target}')
        home = folder / "home"
        home.mkdir()
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG") or k.startswith("OPENBLAS_")}
        self.env = {
            **kept,
            "HOME": str(home),
            "TMPDIR": str(home),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def trace(self, name: str, data: list[dict[str, Any]] | str) -> str:
        """Write a trace and return its name."""
        text = data if isinstance(data, str) else "".join(json.dumps(row) + "\n" for row in data)
        (self.path / name).write_text(text)
        return name

    def faults(self, **faults: Any) -> None:
        """What goes wrong in the jobs from now on; nothing without arguments."""
        (self.path / "go").unlink(missing_ok=True)
        (self.path / "faults.json").write_text(json.dumps(faults))

    def go(self) -> None:
        """Let a paused job go on."""
        (self.path / "go").touch()

    def command(self, *args: object) -> list[str]:
        return [sys.executable, "-m", "stepctl", *map(str, args)]

    def run(
        self, *args: object, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Call the command line and wait."""
        return subprocess.run(
            self.command(*args),
            cwd=self.path,
            env={**self.env, **(env or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def call(self, *args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """The command line in this process: much quicker, where a process of its own is not the point."""
        from stepctl.cli.main import run

        out, err = io.StringIO(), io.StringIO()
        words = [str(arg) for arg in args]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with (
            mock.patch.dict(os.environ, {**self.env, **(env or {})}, clear=True),
            contextlib.chdir(self.path),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run(words)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def start(self, *args: object) -> subprocess.Popen[str]:
        """Call the command line and do not wait."""
        return subprocess.Popen(
            self.command(*args),
            cwd=self.path,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def train(self, *args: object, code: int = 0, **kw: Any) -> dict[str, Any]:
        """``train ... --json`` with the exit code that is expected; the object it prints."""
        refused = code in (2, 3) and "stdin" not in kw
        done = (self.call if refused else self.run)("train", *args, "--json", **kw)
        assert done.returncode == code, (done.returncode, done.stderr, done.stdout)
        assert "Traceback" not in done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def status(self) -> dict[str, Any]:
        done = self.call("status", "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def verify(self) -> None:
        """The lineage is clean."""
        done = self.call("lineage", "verify", "--json")
        assert done.returncode == 0, done.stdout + done.stderr

    def runs(self) -> list[Path]:
        return sorted(p.parent for p in (self.path / "runs").glob("*/run.json"))

    def trained(self) -> int:
        """Rows that the head's chain of hashes holds; a lost or doubled row changes it."""
        head = self.status()["head"]
        if head is None:
            return 0
        state = (self.path / "checkpoints/main/checkpoints" / head / "optimizer.safetensors").read_text()
        count: int = json.loads(state)["trained"]
        return count

    def wait_for(self, phase: str, run: Path | None = None) -> Path:
        """Wait until a job has said that it is in a phase (``step:N``: has made it)."""

        def there() -> Path | None:
            for folder in [run] if run else self.runs()[-1:]:
                if folder and any(name == phase for name in said(folder)):
                    return folder
            return None

        found: Path = until(there)
        return found

    def everything(self) -> Iterator[Path]:
        """Every file under the project but the model and the traces."""
        for path in self.path.rglob("*"):
            if path.is_file() and self.model not in path.parents:
                yield path


def said(run: Path) -> list[str]:
    """The phases and steps that a run's events name."""
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return [
        e["phase"] if e["type"] == "status" else f"step:{e['step']}"
        for e in events
        if e["type"] in ("status", "progress")
    ]


def until(probe: Callable[[], Any], seconds: float = 60) -> Any:
    """Poll another process's doing; bounded."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and the end of it."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def dying_program(*names: str) -> str:
    """A Python program that is the command line, killed before one of its calls of these functions of ``os``.

    Its first argument says how many are made before that; the others are the command line's.
    """
    return f"""
import os, signal, sys
left = int(sys.argv.pop(1))
def dying(name):
    real = getattr(os, name)
    def call(*a, **k):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **k)
    setattr(os, name, call)
for name in {names!r}:
    dying(name)
import pathlib
from stepctl.cli.main import main
main()
"""
