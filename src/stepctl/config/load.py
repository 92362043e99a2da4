"""From the sources to the settings of one call, each with where it came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from stepctl.base.errors import UsageError
from stepctl.base.names import check_name
from stepctl.config import devices, paths
from stepctl.config.fields import flat, one_of, settings, target_kinds
from stepctl.config.model import LocalTarget, Settings, Target
from stepctl.config.sources import find_toml, from_options, from_plain, from_prefixed, from_toml, hf_token, read_toml
from stepctl.config.sources import unknown_key as _unknown_key
from stepctl.config.suggest import did_you_mean, nearest
from stepctl.config.values import Given, convert, printable, shown

LOCAL = "local"
"""The target that always exists."""

_DEFAULT = "default"

_PLACES: dict[str, Callable[[Given, str], str]] = {
    "bucket": paths.bucket,
    "runs": paths.folder,
    "model": paths.model,
    "init_from": paths.adapter,
}
"""Settings that name a place, by the last part of their name."""

_TARGET_PLACES: dict[tuple[str, str], Callable[[Given, str], str]] = {
    ("local", "python"): paths.program,
    ("ssh", "key"): paths.folder,
    ("ssh", "known_hosts"): paths.folder,
}
"""Settings of targets that name a place here, by kind and key; other paths are the machine's."""


@dataclass(frozen=True)
class Loaded:
    """The settings of a call.

    ``settings.bucket``, ``settings.runs`` and folders are absolute; ``settings.targets`` always has ``local``.
    ``sources`` tells for each dotted name ``option``, ``environment NAME``, ``stepctl.toml`` or ``default``; ``given``
    are the names that are not defaults. ``project`` is the folder of ``toml``, or the current one. ``warnings`` are
    for people. The token is in no representation of this object.
    """

    settings: Settings
    sources: dict[str, str]
    given: frozenset[str]
    project: Path
    toml: Path | None
    warnings: list[str]
    hf_token: str | None = field(default=None, repr=False)
    hf_token_source: str | None = None


def load_settings(options: Mapping[str, object], env: Mapping[str, str], cwd: Path) -> Loaded:
    """Resolve the settings: option, ``STEPCTL_*``, plain names, stepctl.toml, default; the first that gives one counts.

    Args:
        options: dotted names (``train.learning_rate``) to values; None means not given.
        env: the environment. A variable that is empty counts as not set.
        cwd: where stepctl.toml is searched from, upwards, and what paths of options and the environment are relative
            to; paths of stepctl.toml and of defaults are relative to the project's folder.

    Raises:
        UsageError: a source cannot be read, a key is unknown, or a value is wrong; values that are overridden are not
            judged.
    """
    cwd = Path(os.path.abspath(cwd))  # noqa: PTH100  (Path.absolute keeps ``..``)
    toml = find_toml(cwd)
    project = toml.parent if toml else cwd
    from_file = list(from_toml(read_toml(toml), toml)) if toml else []
    prefixed, warnings = from_prefixed(env, cwd, {given.path[1] for given in from_file if len(given.path) == 3})
    layers = (*from_file, *from_plain(env, cwd), *prefixed, *from_options(options, cwd))
    winners = {given.path: given for given in layers}

    resolved = msgspec.convert(_values(winners, project), Settings)
    resolved = msgspec.structs.replace(resolved, targets=_targets(g for path, g in winners.items() if len(path) == 3))
    by_name = {given.name: given for given in winners.values()}
    _check_target(resolved, by_name.get("target"))
    _check_device(resolved.train.device, by_name.get("train.device"))
    _check_gpus(resolved, by_name.get("train.gpu_ids"))
    token, token_source = hf_token(env)
    sources = {name: by_name[name].source if name in by_name else _DEFAULT for name in flat(resolved)}
    return Loaded(
        settings=resolved,
        sources=sources,
        given=frozenset(name for name, source in sources.items() if source != _DEFAULT),
        project=project,
        toml=toml,
        warnings=warnings,
        hf_token=token,
        hf_token_source=token_source,
    )


def _values(winners: Mapping[tuple[str, ...], Given], project: Path) -> dict[str, Any]:
    """The document of all settings but targets, judged, with places resolved."""
    document: dict[str, Any] = {}
    for setting in settings().values():
        path = tuple(setting.name.split("."))
        given = winners.get(path)
        if given is None:
            # A default is resolved as stepctl.toml would be; it needs no judging.
            given = Given(path, setting.default, "toml", project)
            value = _place(given, setting.default)
        else:
            value = _place(given, convert(setting, given))
        if setting.name == "lineage":
            _check_name(given, "lineage", value)
        holder = document.setdefault(setting.section, {}) if setting.section else document
        holder[setting.key] = value
    return document


def _place(given: Given, value: object) -> object:
    resolve = _PLACES.get(given.path[-1])
    return resolve(given, value) if resolve and isinstance(value, str) else value


def _target_place(kind: str, given: Given, value: object) -> object:
    resolve = _TARGET_PLACES.get((kind, given.path[-1]))
    return resolve(given, value) if resolve and isinstance(value, str) else value


def _check_name(given: Given, kind: str, name: Any) -> None:
    try:
        check_name(kind, name)
    except UsageError as error:
        raise given.refuse(f"{error.message} ({given.where})", next=error.next) from None


def _targets(given: Iterable[Given]) -> dict[str, Target]:
    """The targets by name; ``local`` is always there, first."""
    groups: dict[str, dict[str, Given]] = {}
    for item in given:
        groups.setdefault(item.path[1], {})[item.path[2]] = item
    found = {name: _target(name, group) for name, group in groups.items()}
    return {LOCAL: found.get(LOCAL, LocalTarget()), **found}


def _target(name: str, group: Mapping[str, Given]) -> Target:
    first = next(iter(group.values()))
    _check_name(first, "target", name)
    kind = _target_kind(name, first, group.get("kind"))
    fields = target_kinds()[kind]
    document: dict[str, Any] = {"kind": kind}
    for key, item in group.items():
        if key == "kind":
            continue
        if key not in fields:
            near = nearest(key.lower().replace("-", "_"), fields)
            raise _unknown_key(item, f"targets.{name}.{near}" if near else None)
        setting = replace(fields[key], name=item.name)
        document[key] = _target_place(kind, item, convert(setting, item))
    for key, setting in fields.items():
        if setting.required and key not in document:
            raise first.refuse(
                f"target {name} has no {key} ({first.where}): {setting.description}",
                next=f"give it one under [targets.{name}]",
                code="missing_setting",
            )
    target: Target = msgspec.convert(document, Target)
    return target


def _target_kind(name: str, first: Given, given: Given | None) -> str:
    kinds = one_of(target_kinds())
    missing = given is None or given.value is None
    if missing and name == LOCAL:
        return LOCAL
    if given is None or missing:
        raise first.refuse(
            f"target {name} has no kind ({first.where})", next=f"give it one under [targets.{name}]: kind = {kinds}"
        )
    if not isinstance(given.value, str) or given.value not in target_kinds():
        raise given.refuse(f"targets.{name}.kind must be {kinds}; {given.where} says {shown(given.value)}")
    if name == LOCAL and given.value != LOCAL:
        raise given.refuse("the target named local is this machine, and has kind local", next="give it another name")
    return given.value


def _check_target(resolved: Settings, given: Given | None) -> None:
    if resolved.target in resolved.targets or given is None:
        return
    names = ", ".join(resolved.targets)
    raise given.refuse(
        f"there is no target {printable(resolved.target)} ({given.where}); there are: {names}",
        next=f"name one of them, or add [targets.{resolved.target}] to stepctl.toml",
        code="unknown_target",
    )


def _check_device(word: str, given: Given | None) -> None:
    if given is None or devices.is_device(word):
        return
    suggestion = devices.meant(word)
    raise given.refuse(
        f"train.device must be {devices.FORMS}; {given.where} says {shown(word)}{did_you_mean(suggestion)}"
    )


def _check_gpus(resolved: Settings, given: Given | None) -> None:
    why = devices.conflict(resolved.train.device, resolved.train.gpu_ids)
    if why is not None and given is not None:
        raise given.refuse(why, next="give one of the two alone, or a list that has the device")
