"""A model's tokenizer without torch and transformers: the few functions that judging needs.

Equal to what transformers makes of the same folder; a test holds rendering and ids equal.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from stepctl.base.errors import UsageError
from stepctl.traces.render.encoded import Encoded, squashed
from stepctl.traces.render.folder import (
    SAVE,
    Templates,
    bytewise,
    chat_templates,
    keep_spaces,
    named_tokens,
    read_object,
)
from stepctl.traces.render.template import ChatTemplate, Message, RenderRefused, default_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextTokenizer:
    """Renders, encodes and decodes. Made by :func:`load_tokenizer`.

    Attributes:
        named: ``bos_token``, ``eos_token`` and other named tokens, as templates see them.
        template: the model's chat template, or None (then the default one renders).
        special: texts of the special tokens: content that spells one would be read as one.
        added: texts of all added tokens, special or not.
    """

    def __init__(
        self, backend: Tokenizer, named: Mapping[str, str], templates: Templates, *, bytewise: bool = False
    ) -> None:
        self._backend, self.named, self._templates, self._bytewise = backend, dict(named), templates, bytewise
        self.template = templates.default
        tokens = backend.get_added_tokens_decoder()
        self.added = frozenset(token.content for token in tokens.values())
        self.special = frozenset(token.content for token in tokens.values() if token.special) | {self.eos_token}
        self._special_ids = {number for number, token in tokens.items() if token.special} | {self.eos_id}
        self._sizes = _Sizes(backend, {number: len(token.content.encode()) for number, token in tokens.items()})

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

    @property
    def origin(self) -> str:
        """Where the chat template comes from, for a person."""
        default = "the default (ChatML)" if self.uses_chatml_default else "the default (`role: content` blocks)"
        return self._templates.origin or default

    @cached_property
    def _chat(self) -> ChatTemplate:
        source = self.template
        if source is None:
            source = default_template(chatml=self.uses_chatml_default, starts_with_bos=self.starts_with_bos)
        return ChatTemplate(source, self.named)

    @cached_property
    def _chat_with_tools(self) -> ChatTemplate:
        source = self._templates.tools
        return self._chat if source is None else ChatTemplate(source, self.named)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool, tools: str = "") -> str:
        """A conversation as text, by the model's chat template or the default one.

        Args:
            messages: as transformers' ``apply_chat_template`` takes them.
            add_generation_prompt: as there.
            tools: the JSON text of a list, or empty.

        Raises:
            RenderRefused: the template refuses or fails; the reason has no text of the conversation.
            UsageError: the template is no valid Jinja.
        """
        return (self._chat_with_tools if tools else self._chat)(messages, add_generation_prompt, tools)

    def writes_the_time(self, messages: Sequence[Message], tools: str = "") -> bool:
        """Whether the rendering of a conversation has today's date or the time in it."""
        return (self._chat_with_tools if tools else self._chat).writes_the_time(messages, tools)

    @cached_property
    def rendering(self) -> str:
        """Stands for how conversations are rendered now: the template, the named tokens, a date that it may write."""
        turn = {"role": "user", "content": "a"}
        try:
            sample: str | None = self.render([turn], True)
        except (RenderRefused, UsageError):
            sample = None
        of_tools = [] if self._templates.tools is None else [self._templates.tools]
        said = json.dumps([self.template, self.named, sample, *of_tools], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def encode(self, text: str, add_special_tokens: bool) -> Encoded:
        """Tokens of one text; ``add_special_tokens`` lets the post-processor add BOS and EOS."""
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[Encoded]:
        """As :meth:`encode`, for many texts at once: several times faster."""
        raw = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        made = []
        for text, encoding in zip(texts, raw, strict=True):
            ids: list[int] = encoding.ids
            added = encoding.special_tokens_mask if add_special_tokens else ()
            made.append(Encoded(text, ids, added, raw=encoding, ends=self._ends(text, ids, added)))
        return made

    def _ends(self, text: str, ids: Sequence[int], added: Sequence[int]) -> list[int] | None:
        """Where each token ends in the bytes of ``text``; None unless the tokens are those bytes for certain."""
        plain = text.isascii()
        if not self._bytewise or not (plain or unicodedata.is_normalized("NFC", text)):
            return None
        sizes = map(self._sizes.__getitem__, ids)
        if 1 in added:
            sizes = map(_or_none, sizes, added)
        ends = list(accumulate(sizes))
        return ends if ends and ends[-1] == (len(text) if plain else len(text.encode())) else None

    def encode_spelled(self, text: str, spelled: Sequence[tuple[int, int]], add_special_tokens: bool) -> Encoded | None:
        """As :meth:`encode`, with the special tokens in the stretches ``spelled`` read as the text that they are.

        Returns:
            None when this tokenizer cannot: the text between two control tokens becomes other tokens when it is taken
            alone, or what is spelled stays a control token or becomes other text.
        """
        plain = "".join(_around(text, spelled, "x"))
        pieces = [piece for piece in _split(self._specials, plain) if piece[0] < piece[1]]
        alone = self._backend.encode_batch([plain[a:b] for a, b in pieces], add_special_tokens=False)
        if [i for piece in alone for i in piece.ids] != self._backend.encode(plain, add_special_tokens=False).ids:
            return None
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for (start, end), piece in zip(pieces, alone, strict=True):
            taken = piece
            if any(start < b and a < end for a, b in spelled):
                taken = self._literal.encode(text[start:end], add_special_tokens=False)
                said = self.decode(taken.ids)
                if not self._special_ids.isdisjoint(taken.ids) or squashed(said) != squashed(text[start:end]):
                    return None
            ids += taken.ids
            offsets += [(start + a, start + b) for a, b in taken.offsets]
        before, after = self._frame if add_special_tokens else ([], [])
        nothing = [(0, 0)]
        return Encoded(
            text,
            [*before, *ids, *after],
            [1] * len(before) + [0] * len(ids) + [1] * len(after),
            offsets=nothing * len(before) + offsets + nothing * len(after),
        )

    @cached_property
    def _specials(self) -> re.Pattern[str]:
        return alternatives(self.special)

    @cached_property
    def _literal(self) -> Tokenizer:
        """The same tokenizer, to which special tokens are text."""
        from tokenizers import Tokenizer

        made = Tokenizer.from_str(self._backend.to_str())
        made.encode_special_tokens = True
        return made

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts before and after a text."""
        sample = self.encode("a", add_special_tokens=True)
        at = next((i for i, added in enumerate(sample.added) if not added), 0)
        end = next((i for i, added in enumerate(sample.added) if added and i >= at), len(sample.ids))
        return sample.ids[:at], sample.ids[end:]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones too."""
        return self._backend.decode(list(ids), skip_special_tokens=False)


class _Sizes(dict[int, int]):
    """How many bytes of text each token is, for a byte-level vocabulary: one character stands for one byte."""

    def __init__(self, backend: Tokenizer, added: Mapping[int, int]) -> None:
        super().__init__(added)
        self._backend = backend

    def __missing__(self, number: int) -> int:
        self[number] = size = len(self._backend.id_to_token(number) or "")
        return size


def _or_none(size: int, added: int) -> int:
    return 0 if added else size


def _around(text: str, stretches: Sequence[tuple[int, int]], letter: str) -> list[str]:
    """``text`` with its ``stretches`` made of ``letter``."""
    parts, at = [], 0
    for start, end in stretches:
        parts += [text[at:start], letter * (end - start)]
        at = end
    return [*parts, text[at:]]


def _split(tokens: re.Pattern[str], text: str) -> list[tuple[int, int]]:
    """[start, end) of the tokens in ``text``, and of the stretches between them."""
    pieces, at = [], 0
    for found in tokens.finditer(text):
        pieces += [(at, found.start()), found.span()]
        at = found.end()
    return [*pieces, (at, len(text))]


def alternatives(tokens: set[str] | frozenset[str]) -> re.Pattern[str]:
    """One of ``tokens``, longer ones first; matches nothing when there is none."""
    return re.compile("|".join(map(re.escape, sorted(tokens - {""}, key=len, reverse=True))) or "(?!)")


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Read tokenizer.json, tokenizer_config.json, special_tokens_map.json and the chat templates of a model's folder.

    Raises:
        UsageError: a file is missing or broken, or no end-of-text token is named.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    data = read_object(path)
    if data is None:
        raise UsageError(f"{folder} has no tokenizer.json", next=SAVE)
    config = read_object(folder / "tokenizer_config.json") or {}
    # A truncation or padding that was recorded when the tokenizer was saved would cut rows in silence.
    data["truncation"] = data["padding"] = None
    keep_spaces(data.get("post_processor"))
    try:
        backend = Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare Exception
        raise UsageError(f"{path} is no tokenizer: {error}", next=SAVE) from error
    named = named_tokens(config, folder)
    if "eos_token" not in named or backend.token_to_id(named["eos_token"]) is None:
        raise UsageError(f"the tokenizer in {folder} has no end-of-text token (eos_token)", next=SAVE)
    return TextTokenizer(backend, named, chat_templates(config, folder), bytewise=bytewise(data, backend))
