"""The sources of settings: options, the environment, stepctl.toml. Each yields what was given; none judges values."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepctl.base.errors import UsageError
from stepctl.config.fields import PREFIX, sections, settings
from stepctl.config.suggest import STRICT, did_you_mean, nearest, nearest_setting
from stepctl.config.values import TOML_NAME, Given, printable

OWN_VARIABLES = {
    "STEPCTL_DEBUG": "1 prints the traceback of an error that stepctl did not expect.",
    "STEPCTL_HUB_TIMEOUT": "Seconds that one request to a bucket of the Hub may take (60).",
}
"""Variables with the prefix that stepctl reads and that are no settings, and what they do."""

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
"""Where the Hugging Face token is looked for, in order."""

_SECRETS = ("token", "api_key", "apikey", "secret", "password")


def is_secret(key: str) -> bool:
    """Whether a setting of this name would hold a secret."""
    key = key.lower().replace("-", "_")
    return key in _SECRETS or key.endswith(tuple(f"_{word}" for word in _SECRETS))


def from_options(options: Mapping[str, object], cwd: Path) -> list[Given]:
    """What the command line gave: dotted names; None means not given.

    Raises:
        KeyError: no setting has this name; a mistake of the program, not of its user.
    """
    return [
        Given(tuple(settings()[name].name.split(".")), value, "option", cwd)
        for name, value in options.items()
        if value is not None
    ]


def from_plain(env: Mapping[str, str], cwd: Path) -> list[Given]:
    """What the plain names in the environment gave (``MODEL_ID``, ``LORA_R``, ...)."""
    return [
        Given(tuple(s.name.split(".")), env[s.plain], "environment", cwd, variable=s.plain)
        for s in settings().values()
        if s.plain and env.get(s.plain, "").strip()
    ]


def from_prefixed(env: Mapping[str, str], cwd: Path, targets: Iterable[str]) -> tuple[list[Given], list[str]]:
    """What ``STEPCTL_*`` gave, and warnings about variables that are not ours.

    Args:
        env: the environment.
        cwd: the folder that relative paths are relative to.
        targets: names of targets in stepctl.toml; ``STEPCTL_TARGETS__GPU_BOX__PYTHON`` finds ``gpu-box``.

    Raises:
        UsageError: a variable is a mistyped one of ours, or two that differ in case disagree.
    """
    found: dict[tuple[str, ...], Given] = {}
    warnings: list[str] = []
    known = {_env_form(name): name for name in ("local", *targets)}
    for variable in sorted(name for name in env if name.startswith(PREFIX)):
        value = env[variable]
        if variable in OWN_VARIABLES or not value.strip():
            continue
        path = _path_of(variable, known)
        if path is None:
            warnings.append(_foreign(variable))
            continue
        given = Given(path, value, "environment", cwd, variable=variable)
        other = found.setdefault(path, given)
        if other.value != value:
            raise given.refuse(f"{other.variable} and {variable} give {given.name} two values", next="unset one")
    return list(found.values()), warnings


def _env_form(target: str) -> str:
    return target.lower().replace("-", "_").replace(".", "_")


def _path_of(variable: str, targets: Mapping[str, str]) -> tuple[str, ...] | None:
    parts = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    if ".".join(parts) in settings():
        return parts
    if len(parts) == 3 and parts[0] == "targets" and all(parts):
        return ("targets", targets.get(parts[1], parts[1]), parts[2])
    return None


def _foreign(variable: str) -> str:
    """The warning about a variable with our prefix that is none of ours; it must not break a call.

    Raises:
        UsageError: it is so near one of ours that it must have been meant.
    """
    if is_secret(variable):
        return f"{printable(variable)} is not read: secrets have names of their own, such as {TOKEN_VARIABLES[0]}"
    name = variable.removeprefix(PREFIX).lower().replace("__", ".")
    nested = "__" in variable
    near = nearest_setting(name, 0.6 if nested else STRICT)
    if near is None and not nested:
        return f"{printable(variable)} is set and is no setting of stepctl: it is ignored"
    suggestion = settings()[near].env if near else None
    raise UsageError(
        f"unknown setting {printable(variable)} in the environment{did_you_mean(suggestion)}",
        next="rename it, or unset it",
        code="unknown_setting",
        details={"key": variable, "source": "environment", "suggestion": suggestion},
    )


def hf_token(env: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The Hugging Face token and its source, or two Nones."""
    for name in TOKEN_VARIABLES:
        if token := env.get(name, "").strip():
            return token, f"environment {name}"
    return None, None


def find_toml(cwd: Path) -> Path | None:
    """The nearest stepctl.toml in ``cwd`` or above it."""
    return next((p for folder in (cwd, *cwd.parents) if os.path.lexists(p := folder / TOML_NAME)), None)


def read_toml(path: Path) -> dict[str, Any]:
    """The document in ``path``; a byte order mark is passed over.

    Raises:
        UsageError: it cannot be read, is not UTF-8, is not TOML (the line is named), or holds a secret.
    """
    try:
        if not path.is_file():
            raise _unreadable(path, "it is not a file, or a link to none", "remove it, or put a file there")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error), "make it readable") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _unreadable(path, f"line {line} is not UTF-8", "save it as UTF-8") from None
    document = _parse_toml(path, text)
    _refuse_secrets(path, document)
    return document


def _unreadable(path: Path, why: str, remedy: str) -> UsageError:
    return UsageError(
        f"{path} cannot be read: {why}", next=remedy, code="unreadable_settings", details={"file": str(path)}
    )


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n") + 1
        why = str(error).replace("at end of document", f"at line {last}, the end")
        raise _unreadable(path, f"it is not TOML: {why}", "correct that line") from None
    except (ValueError, RecursionError):
        raise _unreadable(path, "a number is too long or the nesting too deep", "simplify it") from None


def _refuse_secrets(path: Path, document: dict[str, Any]) -> None:
    """Walk the whole document without recursion, however deep it is."""
    todo: list[tuple[str, object]] = [("", document)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, list):
            todo += [(name, item) for item in value]
        elif isinstance(value, dict):
            for key, inner in value.items():
                full = f"{name}.{key}" if name else key
                if is_secret(key) and not isinstance(inner, dict):
                    raise UsageError(
                        f"{printable(full)} in {path} is a secret, and secrets do not belong in that file",
                        next=f"take it out and put it in the environment (export {TOKEN_VARIABLES[0]}=...); "
                        "if the file was shared or committed, revoke the secret",
                        code="secret_in_file",
                        details={"key": full, "file": str(path)},
                    )
                todo.append((full, inner))


def from_toml(document: Mapping[str, Any], path: Path) -> Iterator[Given]:
    """What stepctl.toml gave, setting by setting.

    Raises:
        UsageError: a key is unknown, or a section is no table.
    """
    for key, value in document.items():
        if key == "targets":
            for name, target in _table((key,), value, path).items():
                # An empty table names a target too: one without a kind.
                for inner, item in (_table((key, name), target, path) or {"kind": None}).items():
                    yield _toml_given((key, name, inner), item, path)
        elif key in sections():
            for inner, item in _table((key,), value, path).items():
                yield _known((key, inner), item, path)
        elif isinstance(value, dict) and key not in settings():
            raise unknown_key(_toml_given((key,), value, path), nearest(key.lower(), (*sections(), "targets")))
        else:
            yield _known((key,), value, path)


def _toml_given(name: tuple[str, ...], value: object, path: Path) -> Given:
    return Given(name, value, "toml", path.parent, file=path)


def _table(name: tuple[str, ...], value: object, path: Path) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    dotted = printable(".".join(name))
    given = _toml_given(name, value, path)
    raise given.refuse(f"{dotted} in {path} must be a table", next=f"write [{dotted}] and its settings below it")


def _known(name: tuple[str, ...], value: object, path: Path) -> Given:
    given = _toml_given(name, value, path)
    if any("." in part for part in name):
        raise given.refuse(
            f"{printable(given.name)} in {path} has a quoted key with a dot", next="write it without quotes"
        )
    if given.name in settings():
        return given
    raise unknown_key(given, nearest_setting(given.name))


def unknown_key(given: Given, suggestion: str | None) -> UsageError:
    """The error about a key that is no setting, for the caller to raise."""
    error = given.refuse(
        f"unknown setting {printable(given.name)} in {given.where}{did_you_mean(suggestion)}",
        next="rename or remove it" if suggestion else "remove it: no setting has a similar name",
        code="unknown_setting",
    )
    error.details["suggestion"] = suggestion
    return error
