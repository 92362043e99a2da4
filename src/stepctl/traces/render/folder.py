"""What a tokenizer's folder says: its named tokens, its chat templates, and what its vocabulary is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepctl.base.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAVE = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
_FILE = "chat_template.jinja"
_MORE = "additional_chat_templates"
_TOOLS = "tool_use"


@dataclass(frozen=True)
class Templates:
    """A model's chat templates: ``tools`` is one of its own for conversations with tools. ``origin`` tells whence."""

    default: str | None = None
    tools: str | None = None
    origin: str | None = None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no file.

    Raises:
        UsageError: the file has something else.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON", next=SAVE) from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a JSON object", next=SAVE)
    return value


def keep_spaces(processor: Any) -> None:
    """Make offsets cover the space that a token begins with: masks are made from them."""
    if isinstance(processor, dict):
        if "trim_offsets" in processor:
            processor["trim_offsets"] = False
        for inner in processor.get("processors", []):
            keep_spaces(inner)


def named_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """``bos_token``, ``eos_token`` and the others that have a name."""
    values = dict(config)
    if "added_tokens_decoder" not in config:
        values |= read_object(folder / "special_tokens_map.json") or {}
    extra = values.get("extra_special_tokens")
    tokens = {key: value for key, value in values.items() if key.endswith("_token")}
    tokens |= extra if isinstance(extra, dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in tokens.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def chat_templates(config: Mapping[str, Any], folder: Path) -> Templates:
    """The chat templates: those in files, or else those in tokenizer_config.json.

    Raises:
        UsageError: a file is not text, or there are several templates and none is the default.
    """
    alone = _text(folder / _FILE)
    if alone is not None:
        return Templates(alone, _text(folder / _MORE / f"{_TOOLS}.jinja"), f"{_FILE} of {folder}")
    template, origin = config.get("chat_template"), f"tokenizer_config.json of {folder}"
    if isinstance(template, list):
        template = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
    if isinstance(template, dict):
        if "default" not in template:
            raise UsageError(
                f"the tokenizer in {folder} has several chat templates and none is named default",
                next=f"write the one to use to {_FILE} in that folder",
            )
        tools = template.get(_TOOLS)
        return Templates(template["default"], tools if isinstance(tools, str) else None, origin)
    return Templates(template, None, origin) if isinstance(template, str) else Templates()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text") from error


def bytewise(data: Mapping[str, Any], backend: Tokenizer) -> bool:
    """Whether each token of a vocabulary stands for bytes of the text, so that a token's length tells its place.

    Args:
        data: tokenizer.json.
        backend: the tokenizer made of it.
    """
    from tokenizers import pre_tokenizers

    model = data.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        return False
    before, after = list(_steps(data.get("pre_tokenizer"))), list(_steps(data.get("decoder")))
    return (
        any(step.get("type") == "ByteLevel" for step in before)
        and not any(step.get("add_prefix_space") or step.get("behavior") == "Removed" for step in before)
        and {step.get("type") for step in before} <= {"ByteLevel", "Split", "Digits"}
        and [step.get("type") for step in after] == ["ByteLevel"]
        and all(step.get("type") == "NFC" for step in _steps(data.get("normalizer")))
        and not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
        # A byte that the vocabulary lacks is dropped, which is seen, or replaced, which need not be.
        and (
            model.get("unk_token") is None or None not in map(backend.token_to_id, pre_tokenizers.ByteLevel.alphabet())
        )
    )


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder."""
    if isinstance(part, dict):
        inner = next((part[key] for key in ("normalizers", "pretokenizers", "decoders") if key in part), None)
        if isinstance(inner, list):
            for step in inner:
                yield from _steps(step)
        else:
            yield part
