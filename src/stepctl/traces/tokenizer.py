"""A model's tokenizer without torch and transformers: the few functions that judging needs.

Equal to what transformers makes of the same folder; a test holds rendering and ids equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepctl.base.errors import UsageError
from stepctl.traces.template import Message, Render, RenderRefused, compile_template, default_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SAVE = "save it with AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"


class Encoded(NamedTuple):
    """Tokens of a text: ids, [start, end) in characters of the text, and 1 where the post-processor put a token."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    added: list[int]


class TextTokenizer:
    """Renders, encodes and decodes. Made by :func:`load_tokenizer`.

    Attributes:
        named: ``bos_token``, ``eos_token`` and other named tokens, as templates see them.
        template: the model's chat template, or None (then the default one renders).
        special: texts of the special tokens: content that spells one would be read as one.
        added: texts of all added tokens, special or not.
    """

    def __init__(self, backend: Tokenizer, named: Mapping[str, str], template: str | None) -> None:
        self._backend, self.named, self.template = backend, dict(named), template
        tokens = backend.get_added_tokens_decoder().values()
        self.added = frozenset(token.content for token in tokens)
        self.special = frozenset(token.content for token in tokens if token.special) | {self.eos_token}

    @property
    def eos_token(self) -> str:
        return self.named["eos_token"]

    @property
    def eos_id(self) -> int:
        token_id = self._backend.token_to_id(self.eos_token)
        assert token_id is not None, "load_tokenizer looks"
        return token_id

    @property
    def bos_token(self) -> str | None:
        return self.named.get("bos_token")

    @property
    def bos_id(self) -> int | None:
        return None if self.bos_token is None else self._backend.token_to_id(self.bos_token)

    @property
    def origin(self) -> str:
        """Where the chat template comes from."""
        return "the model's" if self.template is not None else "the default"

    @property
    def starts_with_bos(self) -> bool:
        """Whether plain text gets a BOS in front."""
        first = self.encode("a", add_special_tokens=True).ids[:1]
        return bool(first) and first[0] == self.bos_id

    @property
    def uses_chatml_default(self) -> bool:
        """Whether the vocabulary has the two tokens of ChatML, each as one."""
        return all(
            len(self.encode(token, add_special_tokens=False).ids) == 1 for token in ("<|im_start|>", "<|im_end|>")
        )

    @cached_property
    def _render(self) -> Render:
        source = self.template
        if source is None:
            source = default_template(chatml=self.uses_chatml_default, starts_with_bos=self.starts_with_bos)
        return compile_template(source, self.named)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """A conversation as text, by the model's chat template or the default one.

        Raises:
            RenderRefused: the template refuses or fails; the reason has no text of the conversation.
            UsageError: the template is no valid Jinja.
        """
        return self._render(messages, add_generation_prompt)

    @cached_property
    def rendering(self) -> str:
        """Stands for how conversations are rendered now: the template, the named tokens, a date that it may write."""
        turn = {"role": "user", "content": "a"}
        try:
            sample: str | None = self.render([turn], True)
        except (RenderRefused, UsageError):
            sample = None
        said = json.dumps([self.template, self.named, sample], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def encode(self, text: str, add_special_tokens: bool) -> Encoded:
        """Tokens of one text; ``add_special_tokens`` lets the post-processor add BOS and EOS."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Encoded]:
        """As :meth:`encode`, for many texts at once: several times faster."""
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [Encoded(e.ids, e.offsets, e.special_tokens_mask) for e in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones too."""
        return self._backend.decode(list(ids), skip_special_tokens=False)


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Read tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja of a model's folder.

    Raises:
        UsageError: a file is missing or broken, or no end-of-text token is named.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    data = _object(path)
    if data is None:
        raise UsageError(f"{folder} has no tokenizer.json", next=_SAVE)
    config = _object(folder / "tokenizer_config.json") or {}
    # A truncation or padding that was recorded when the tokenizer was saved would cut rows in silence.
    data["truncation"] = data["padding"] = None
    _keep_spaces(data.get("post_processor"))
    try:
        backend = Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"{path} is no tokenizer: {error}", next=_SAVE) from error
    named = _named(config, folder)
    if "eos_token" not in named or backend.token_to_id(named["eos_token"]) is None:
        raise UsageError(f"the tokenizer in {folder} has no end-of-text token (eos_token)", next=_SAVE)
    return TextTokenizer(backend, named, _template(config, folder))


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON", next=_SAVE) from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} is not a JSON object", next=_SAVE)
    return value


def _keep_spaces(processor: Any) -> None:
    """Make offsets cover the space that a token begins with: masks are made from them."""
    if isinstance(processor, dict):
        if "trim_offsets" in processor:
            processor["trim_offsets"] = False
        for inner in processor.get("processors", []):
            _keep_spaces(inner)


def _named(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    values = dict(config)
    if "added_tokens_decoder" not in config:
        values |= _object(folder / "special_tokens_map.json") or {}
    extra = values.get("extra_special_tokens")
    tokens = {key: value for key, value in values.items() if key.endswith("_token")}
    tokens |= extra if isinstance(extra, dict) else {}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in tokens.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _template(config: Mapping[str, Any], folder: Path) -> str | None:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except FileNotFoundError:
        template = config.get("chat_template")
    except UnicodeDecodeError as error:
        raise UsageError(f"{folder / 'chat_template.jinja'} is not UTF-8 text") from error
    if isinstance(template, list):
        template = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
    if isinstance(template, dict):
        if "default" not in template:
            raise UsageError(
                f"the tokenizer in {folder} has several chat templates and none is named default",
                next="write the one to use to chat_template.jinja in that folder",
            )
        template = template["default"]
    return template if isinstance(template, str) else None
