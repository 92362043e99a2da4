"""From what a user calls a model to one that is identified: a commit of the Hub, or the content of a folder."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepctl.base.errors import StepctlError, UsageError

SMALL_FILES = ("*.json", "*.jinja", "tokenizer*", "*.model")
_WEIGHTS = ("*.safetensors", "*.bin")
_SAMPLES, _SAMPLE = 64, 1 << 16
_USE_A_FOLDER = "check the name, or use a folder: --model /path/to/model"


@dataclass(frozen=True)
class ResolvedModel:
    """``folder`` holds at least the tokenizer and config.json; ``revision`` identifies the content (see Identity)."""

    source: str
    revision: str
    folder: Path
    vocab_size: int
    config: dict[str, Any]

    @property
    def commit(self) -> str | None:
        """The commit to load from the Hub; None for a folder."""
        return None if self.revision.startswith("files:") else self.revision


def is_folder(model: str) -> bool:
    """Whether the name means a folder: settings make every folder's path absolute."""
    return Path(model).is_absolute()


def resolve_model(model: str, revision: str | None, token: str | None) -> ResolvedModel:
    """Find the model's small files, fetching them from the Hub when they are not in its cache.

    Raises:
        UsageError: there is no such folder, model or revision, or it is no causal language model's folder.
        StepctlError: the Hub cannot be reached, or does not let us in.
    """
    if is_folder(model):
        folder, found = Path(model), None
        if not folder.is_dir():
            raise UsageError(f"the model folder {model} does not exist", next=_USE_A_FOLDER, code="no_model")
        if revision is not None:
            raise UsageError("a revision was given, but the model is a folder", next="leave --revision out")
    else:
        folder, found = _snapshot(model, revision, token)
    config = _config(folder)
    vocab = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(vocab, int):
        raise UsageError(f"{folder / 'config.json'} names no vocab_size: not a language model", code="no_model")
    return ResolvedModel(model, found or f"files:{fingerprint(folder)}", folder, vocab, config)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{folder} has no config.json: not a model's folder", next=_USE_A_FOLDER) from None
    except ValueError as error:
        raise UsageError(f"{folder / 'config.json'} is not JSON ({error})", next=_USE_A_FOLDER) from None
    if not isinstance(config, dict):
        raise UsageError(f"{folder / 'config.json'} is not a JSON object", next=_USE_A_FOLDER)
    return config


def _snapshot(model: str, revision: str | None, token: str | None) -> tuple[Path, str]:
    import os

    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import constants, errors, snapshot_download

    at = f" at revision {revision}" if revision else ""
    try:
        path = Path(snapshot_download(model, revision=revision, token=token, allow_patterns=list(SMALL_FILES)))
    except errors.GatedRepoError as error:
        raise StepctlError(
            f"the model {model} is gated on the Hub, and this token may not read it",
            next=f"ask for access on the model's page, or set HF_TOKEN; or {_USE_A_FOLDER}",
            code="model_gated",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        raise StepctlError(
            f"the model {model}{at} is not in the local cache, and {why}",
            next="try again with a connection, or use a folder: --model /path/to/model",
            code="hub_unreachable",
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            f"there is no model {model}{at} on the Hub, or the token may not see it",
            next=_USE_A_FOLDER,
            code="no_model",
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise StepctlError(
            f"the Hub did not give the model {model}{at} ({type(error).__name__})",
            next="try again, or use a folder: --model /path/to/model",
            code="hub_unreachable",
        ) from error
    return path, path.name


def fingerprint(folder: Path) -> str:
    """Hex sha256 that stands for a folder's model: config and tokenizer whole, weights by name, size and samples.

    Of each weight file 64 blocks of 64 KiB are read, evenly spread from the first to the last byte: whole-file hashes
    of large models would take longer than a call.
    """
    digest = hashlib.sha256()
    for name in ("config.json", "tokenizer.json"):
        path = folder / name
        digest.update(f"{name}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    for path in sorted(p for pattern in _WEIGHTS for p in folder.glob(pattern) if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for i in range(_SAMPLES if size > _SAMPLES * _SAMPLE else 0):
                file.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
            if size <= _SAMPLES * _SAMPLE:
                digest.update(file.read())
    return digest.hexdigest()
