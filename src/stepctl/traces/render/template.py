"""Chat templates: how they are called, and the one that is used when a model has none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from stepctl.base.errors import UsageError
from stepctl.base.text import visible
from stepctl.traces.render.sandbox import environment, literals, without_values

Message = Mapping[str, Any]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Default for a vocabulary that has ``<|im_start|>`` and ``<|im_end|>``: every role is kept, every turn is ended."""

BLOCKS = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Default for all others: ``role: content``, one block a message; the assistant's turns end with the EOS token."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
_OTHER_DAYS = (datetime(2001, 2, 3, 4, 5, 6), datetime(2033, 11, 22, 13, 14, 15))


class RenderRefused(Exception):
    """A template does not render a conversation. ``reason`` has no text of the conversation."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def default_template(*, chatml: bool, starts_with_bos: bool) -> str:
    """The template of a model without one; ``starts_with_bos`` when its tokenizer begins plain text with a BOS."""
    return ("{{ bos_token }}" if starts_with_bos else "") + (CHATML if chatml else BLOCKS)


class ChatTemplate:
    """A chat template that can be called. The time that it may write stands still from its first call on.

    Args:
        source: the template.
        variables: ``bos_token``, ``eos_token`` and the like.

    Raises:
        UsageError: the template is no valid Jinja.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        from jinja2 import TemplateSyntaxError

        self._variables = dict(variables)
        self._now: datetime | None = None
        sandbox = environment(self._time)
        try:
            self._template = sandbox.from_string(source)
            # As one dict and not a chain of two: each rendering copies them.
            self._template.globals = dict(self._template.globals)
            self._literals, self._raised = literals(sandbox.parse(source))
        except TemplateSyntaxError as error:
            raise UsageError(
                f"the model's chat template is no valid template (its line {error.lineno})",
                next="mend chat_template.jinja in the model's folder, or take another model",
            ) from error
        except RecursionError as error:
            raise UsageError(
                "the model's chat template is nested too deeply",
                next="mend chat_template.jinja in the model's folder, or take another model",
            ) from error
        self._may_write_the_time = "strftime_now" in source

    def _time(self) -> datetime:
        if self._now is None:
            self._now = datetime.now()
        return self._now

    def __call__(self, messages: Sequence[Message], add_generation_prompt: bool, tools: str = "") -> str:
        """Render a conversation; ``tools`` is the JSON text of a list, or empty.

        Raises:
            RenderRefused: the template refuses it or fails; the reason has no text of the conversation.
        """
        from jinja2.exceptions import TemplateError

        try:
            return str(
                self._template.render(
                    messages=[_with_reasoning(message) for message in messages],
                    tools=_parsed(tools) if tools else None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **self._variables,
                )
            )
        except TemplateError as error:
            if said := self._said(error.message or ""):
                raise RenderRefused(f"the chat template refuses this conversation: {said}") from None
            raise RenderRefused(f"the chat template fails on this conversation ({type(error).__name__})") from None
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's author
            raise RenderRefused(f"the chat template fails on this conversation ({type(error).__name__})") from None

    def _said(self, message: str) -> str | None:
        """What a template's refusal says, without the texts of the conversation that it may be made of."""
        if message in self._literals:
            return visible(message)
        found = next((said for pieces in self._raised if (said := without_values(message, pieces))), None)
        return None if found is None else visible(found)

    def writes_the_time(self, messages: Sequence[Message], tools: str = "") -> bool:
        """Whether the rendering of a conversation depends on the day or hour it is made."""
        if not self._may_write_the_time:
            return False
        kept, texts = self._now, []
        for self._now in _OTHER_DAYS:
            try:
                texts.append(self(messages, False, tools))
            except RenderRefused:
                texts.append("")
        self._now = kept
        return texts[0] != texts[1]


def _with_reasoning(message: Message) -> Message:
    """As transformers gives it to templates: they read reasoning by more than one name."""
    for key in _REASONING:
        if key in message and message[key] is not None:
            return {"thinking": message[key], **message, "reasoning_content": message[key]}
    return message


@lru_cache(maxsize=64)
def _parsed(tools: str) -> Any:
    return json.loads(tools)
