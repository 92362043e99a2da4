"""The sandbox that chat templates run in: transformers' own options, filters and globals; a test holds them equal.

A template is a program of the model's author. The sandbox keeps it from files and from Python, ``range`` from more than
100,000 turns, and products and powers from more than is ever written; loops in loops are not bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

MOST = 10_000_000
_NOTHING = object()
_DICT = frozenset(dir(dict))
_LOOP = frozenset(("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem"))
_TEXT_METHODS = frozenset(
    ("startswith", "endswith", "split", "rsplit", "strip", "lstrip", "rstrip", "replace", "lower", "upper", "find")
)


def environment(now: Callable[[], datetime]) -> Any:
    """A Jinja environment; ``now`` is what ``strftime_now`` tells."""
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """The ``generation`` tag: rendered as its body."""

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

    fast: dict[type, frozenset[str]] = {str: _TEXT_METHODS, jinja2.runtime.LoopContext: _LOOP}

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def getattr(self, obj: Any, attribute: str) -> Any:
            """As the sandbox does it, without its checks where they are known to pass: half of the time goes there."""
            kind = type(obj)
            if kind is dict and attribute not in _DICT:
                found = obj.get(attribute, _NOTHING)
                return self.undefined(obj=obj, name=attribute) if found is _NOTHING else found
            return getattr(obj, attribute) if attribute in fast.get(kind, ()) else super().getattr(obj, attribute)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if _product(operator, left, right) > MOST:
                raise OverflowError("a product or power in the chat template is too large")
            return super().call_binop(context, operator, left, right)

    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["namespace"] = Namespace
    made.globals["dict"] = _Dict()
    made.globals["strftime_now"] = lambda form: now().strftime(form)
    return made


def _product(operator: str, left: Any, right: Any) -> int:
    """How large a product or power becomes: characters or items, or bits of an integer."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * (right if operator == "**" else 1) + right.bit_length()
    sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
    times = [value for value in (left, right) if isinstance(value, int)]
    return sizes[0] * times[0] if sizes and times else 0


class _Dict:
    """``dict`` without its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


def literals(tree: Any) -> tuple[frozenset[str], list[list[str | None]]]:
    """Texts that stand in a template as they are, and the pieces of each message that it raises (None: not such).

    Args:
        tree: the parsed template.
    """
    from jinja2 import nodes

    texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    raised = [
        list(_pieces(call.args[0]))
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name == "raise_exception" and len(call.args) == 1
    ]
    return frozenset(texts), raised


def _pieces(node: Any) -> Iterator[str | None]:
    from jinja2 import nodes

    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, nodes.Add):
        yield from _pieces(node.left)
        yield from _pieces(node.right)
    elif isinstance(node, nodes.Concat):
        for part in node.nodes:
            yield from _pieces(part)
    else:
        yield None


def without_values(message: str, pieces: list[str | None]) -> str | None:
    """``message`` with "..." where ``pieces`` has None; None when it is not made of them or has no words of theirs."""
    at = 0
    for number, piece in enumerate(pieces):
        if piece is None:
            continue
        found = message.find(piece, at)
        if found < 0 or (found > at and (number == 0 or pieces[number - 1] is not None)):
            return None
        at = found + len(piece)
    if at < len(message) and pieces[-1:] != [None]:
        return None
    said = "".join("..." if piece is None else piece for piece in pieces)
    return said if said.strip(". ") else None
