"""Chat templates: the sandbox they run in, and the one that is used when a model has none.

The sandbox is that of transformers' ``apply_chat_template``: same options and filters; a test holds them equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from stepctl.base.errors import UsageError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], bool], str]

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


class RenderRefused(Exception):
    """A template does not render a conversation. ``reason`` has no text of the conversation."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def default_template(*, chatml: bool, starts_with_bos: bool) -> str:
    """The template of a model without one; ``starts_with_bos`` when its tokenizer begins plain text with a BOS."""
    return ("{{ bos_token }}" if starts_with_bos else "") + (CHATML if chatml else BLOCKS)


def compile_template(source: str, variables: Mapping[str, str]) -> Render:
    """Make a chat template callable; ``variables`` are ``bos_token``, ``eos_token`` and the like.

    The result takes messages and ``add_generation_prompt``, and raises :class:`RenderRefused`.

    Raises:
        UsageError: the template is no valid Jinja.
    """
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.exceptions import TemplateError

    environment = _environment()
    try:
        template = environment.from_string(source)
        literals = {node.value for node in environment.parse(source).find_all(nodes.Const)}
    except TemplateSyntaxError as error:
        raise UsageError(
            f"the model's chat template is no valid template (its line {error.lineno})",
            next="mend chat_template.jinja in the model's folder, or take another model",
        ) from error

    def render(messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return str(
                template.render(
                    messages=[dict(message) for message in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **variables,
                )
            )
        except TemplateError as error:
            # A message built from the conversation holds its text; one that stands in the template as it is does not.
            if error.message in literals:
                raise RenderRefused(f"the chat template refuses this conversation: {error.message}") from None
            raise RenderRefused(f"the chat template fails on this conversation ({type(error).__name__})") from None
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's author
            raise RenderRefused(f"the chat template fails on this conversation ({type(error).__name__})") from None

    return render


def _environment() -> Any:
    """The sandbox of transformers: options, the ``generation`` tag (rendered as its body), filters, globals."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

        def parse(self, parser: Any) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body: list[jinja2.nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Callable[[], str]) -> str:
            return caller()

    class Namespace(jinja2.utils.Namespace):
        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise jinja2.exceptions.SecurityError("a namespace has no underscore-prefixed attributes")
            super().__setitem__(name, value)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["namespace"] = Namespace
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
