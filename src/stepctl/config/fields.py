"""Every setting as data, read off the msgspec model: what sources, errors and generated documents say of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import NODEFAULT, inspect

from stepctl.config.model import Settings, Target

Kind = Literal["text", "integer", "number", "boolean", "list", "integers", "choice", "table"]

PREFIX = "STEPCTL_"

PLAIN = {
    "model": "MODEL_ID",
    "bucket": "BUCKET_ID",
    "lora.r": "LORA_R",
    "lora.alpha": "LORA_ALPHA",
    "lora.dropout": "LORA_DROPOUT",
    "lora.target_modules": "LORA_TARGET_MODULES",
    "train.learning_rate": "LEARNING_RATE",
    "train.max_length": "MAX_LENGTH",
    "train.grad_accum": "GRAD_ACCUM",
}
"""Environment names without the prefix, shared with other tools."""

OPTIONS = {
    "target": "--target",
    "method": "--method",
    "model": "--model",
    "revision": "--revision",
    "bucket": "--bucket",
    "lineage": "--lineage",
    "init_from": "--init-from",
    "train.max_length": "--max-length",
    "train.grad_accum": "--grad-accum",
    "train.learning_rate": "--learning-rate",
    "train.seed": "--seed",
    "train.gpu_ids": "--gpu-ids",
}
"""Settings that ``stepctl train`` takes as an option."""

_TYPE_TEXT = {
    "text": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "list": "a list of names",
    "integers": "a list of whole numbers",
    "table": "a table of texts",
}


def one_of(words: Iterable[str]) -> str:
    """``"a", "b" or "c"``."""
    *rest, last = (f'"{word}"' for word in words)
    return f"{', '.join(rest)} or {last}" if rest else last


@dataclass(frozen=True)
class Setting:
    """One setting.

    ``name`` is dotted, from the top; ``hint`` the annotated type for ``msgspec.convert``; ``limits`` words such as
    ``at least 1, at most 1024``, or empty. An optional setting is None by default, and empty text means None.
    """

    name: str
    hint: Any
    kind: Kind
    default: object
    description: str
    limits: str = ""
    choices: tuple[str, ...] = ()
    optional: bool = False
    required: bool = False

    @property
    def key(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def section(self) -> str:
        """What is before the last part; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def env(self) -> str:
        """The name in the environment, with the prefix."""
        return PREFIX + self.name.replace(".", "__").upper()

    @property
    def plain(self) -> str | None:
        """The name in the environment without the prefix, where there is one."""
        return PLAIN.get(self.name)

    @property
    def option(self) -> str | None:
        """The option of ``stepctl train``, where there is one."""
        return OPTIONS.get(self.name)

    @property
    def expected(self) -> str:
        """What a value must be, for errors and tables."""
        if self.choices:
            return one_of(self.choices)
        return ", ".join(filter(None, (_TYPE_TEXT[self.kind], self.limits)))


@cache
def settings() -> dict[str, Setting]:
    """All settings but those of ``targets``, by dotted name, in the order of the model."""
    found: dict[str, Setting] = {}
    for field in msgspec.structs.fields(Settings):
        node = inspect.type_info(field.type)
        if isinstance(node, inspect.StructType):
            found.update((s.name, s) for s in _of_struct(node.cls, f"{field.name}."))
        elif not isinstance(node, inspect.DictType):
            found[field.name] = _setting(field, "")
    return found


@cache
def sections() -> dict[str, str]:
    """The tables of stepctl.toml that hold settings, and what the model says of each."""
    nodes = ((field.name, inspect.type_info(field.type)) for field in msgspec.structs.fields(Settings))
    return {name: node.cls.__doc__ or "" for name, node in nodes if isinstance(node, inspect.StructType)}


@cache
def target_kinds() -> dict[str, dict[str, Setting]]:
    """The settings of each kind of target by their last part; names begin with ``targets.NAME.``."""
    node = inspect.type_info(Target)
    structs = node.types if isinstance(node, inspect.UnionType) else (node,)
    return {
        str(s.tag): {f.key: f for f in _of_struct(s.cls, "targets.NAME.")}
        for s in structs
        if isinstance(s, inspect.StructType)
    }


def _of_struct(cls: Any, prefix: str) -> list[Setting]:
    return [_setting(field, prefix) for field in msgspec.structs.fields(cls)]


def _setting(field: msgspec.structs.FieldInfo, prefix: str) -> Setting:
    node = inspect.type_info(field.type)
    description = ""
    if isinstance(node, inspect.Metadata):
        description = (node.extra_json_schema or {}).get("description", "")
        node = node.type
    optional = isinstance(node, inspect.UnionType)
    if isinstance(node, inspect.UnionType):
        node = next(part for part in node.types if not isinstance(part, inspect.NoneType))
        node = node.type if isinstance(node, inspect.Metadata) else node
    return Setting(
        name=prefix + field.name,
        hint=field.type,
        kind=_kind(node),
        default=_default(field),
        description=description,
        limits=_limits(node),
        choices=tuple(map(str, node.values)) if isinstance(node, inspect.LiteralType) else (),
        optional=optional,
        required=field.required,
    )


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default is not NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not NODEFAULT else None


def _kind(node: inspect.Type) -> Kind:
    if isinstance(node, inspect.VarTupleType):
        return "integers" if isinstance(node.item_type, inspect.IntType) else "list"
    kinds: dict[type, Kind] = {
        inspect.StrType: "text",
        inspect.IntType: "integer",
        inspect.FloatType: "number",
        inspect.BoolType: "boolean",
        inspect.LiteralType: "choice",
        inspect.DictType: "table",
    }
    return kinds[type(node)]


def _limits(node: inspect.Type) -> str:
    if isinstance(node, inspect.VarTupleType):
        node = node.item_type
    if not isinstance(node, inspect.IntType | inspect.FloatType):
        return ""
    words = (("at least", node.ge), ("greater than", node.gt), ("at most", node.le), ("less than", node.lt))
    return ", ".join(f"{word} {limit}" for word, limit in words if limit is not None)


def flat(values: Settings) -> dict[str, object]:
    """The values of ``values`` by dotted name: those of :func:`settings`, then those of its targets."""
    found: dict[str, object] = {}
    for setting in settings().values():
        holder = getattr(values, setting.section) if setting.section else values
        found[setting.name] = getattr(holder, setting.key)
    for name, target in values.targets.items():
        kind = str(target.__struct_config__.tag)
        found[f"targets.{name}.kind"] = kind
        found.update({f"targets.{name}.{key}": getattr(target, key) for key in target_kinds()[kind]})
    return found
