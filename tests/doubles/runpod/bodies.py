"""What a body must look like, as the provider's document says it; also where the document itself is not at hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .base import Problem

Check = Callable[[Any], str]
"""Empty when the value is right, else what is wrong with it."""


def _kind(name: str, *types: type) -> Check:
    def check(value: Any) -> str:
        fits = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        return "" if fits else f"expected {name}"

    return check


def _whole(least: int, most: int = 1 << 40) -> Check:
    def check(value: Any) -> str:
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return "" if fits else f"expected an integer of at least {least}"

    return check


def _one_of(*values: str) -> Check:
    return lambda value: "" if value in values else f"value must be one of {', '.join(values)}"


def _matching(pattern: str) -> Check:
    return lambda value: "" if isinstance(value, str) and re.fullmatch(pattern, value) else f"must match {pattern}"


def _list_of(item: Check, most: int = 1000) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, list) or len(value) > most:
            return f"expected a list of at most {most}"
        return next((wrong for one in value if (wrong := item(one))), "")

    return check


def _env(value: Any) -> str:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        return "expected an object of strings"
    return "" if len(value) <= 50 else "at most 50 variables"


def _object(fields: dict[str, Check], required: tuple[str, ...] = ()) -> Check:
    def check(value: Any) -> str:
        errors = wrong_fields(value, fields, required) if isinstance(value, dict) else ["expected object"]
        return "; ".join(errors)

    return check


_text = _kind("string", str)
_named = _matching(r"(?s).+")
_flag = _kind("boolean", bool)
_version = _matching(r"\d+\.\d+")
_GPU = _object(
    {"id": _text, "count": _whole(1), "allowedCudaVersions": _list_of(_version), "minCudaVersion": _version}, ("id",)
)
_MOUNTS = _object(
    {
        "persistent": _object({"size": _whole(10), "path": _text}, ("size", "path")),
        "network": _list_of(_object({"volumeId": _text, "path": _text}, ("volumeId", "path")), 1),
    }
)
_CONTAINER: dict[str, Check] = {
    "args": _text,
    "disk": _whole(1),
    "env": _env,
    "image": _text,
    "ports": _list_of(_matching(r"\d+/(http|tcp|udp)")),
    "registry": _kind("string or null", str, type(None)),
    "mounts": _MOUNTS,
    "name": _named,
    "globalNetworking": _flag,
    "templateId": _named,
}
CREATE: dict[str, Check] = {
    **_CONTAINER,
    "cloud": _one_of("SECURE", "COMMUNITY"),
    "cpu": _object({"id": _text, "vcpuCount": _whole(2)}, ("id", "vcpuCount")),
    "dataCenterIds": _list_of(_text),
    "gpu": _GPU,
    "startJupyter": _flag,
    "startSsh": _flag,
}
PATCH: dict[str, Check] = {**_CONTAINER, "locked": _flag}
ACTION: dict[str, Check] = {"action": _one_of("start", "stop", "restart", "terminate")}
SECRET: dict[str, Check] = {"name": _matching(r"(?!RUNPOD)[A-Za-z][A-Za-z0-9_]*"), "value": _text}
KEYS: dict[str, Check] = {"keys": _list_of(_matching(r"(ssh|ecdsa|sk)-\S+ \S+([ \t][^\n\r]*)?"))}


def wrong_fields(body: dict[str, Any], fields: dict[str, Check], required: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with an object's fields."""
    errors = [f"missing property '{name}'" for name in required if name not in body]
    errors += [f"additional properties '{name}' not allowed" for name in body if name not in fields]
    errors += [f"{name}: {wrong}" for name, value in body.items() if name in fields and (wrong := fields[name](value))]
    return errors


def check(body: dict[str, Any], fields: dict[str, Check], required: tuple[str, ...] = ()) -> None:
    """Refuse a body that the contract does not allow.

    Raises:
        Problem: 422 with one line for each fault.
    """
    errors = [f"$: {error}" for error in wrong_fields(body, fields, required)]
    if errors:
        raise Problem(422, "Request validation failed.", errors)


def check_create(body: dict[str, Any]) -> None:
    """The body of a create, and the rules across its fields.

    Raises:
        Problem: 422 for the contract, 400 for a rule.
    """
    check(body, CREATE, ("name",) if "templateId" in body else ("name", "image"))
    rules = [
        (("gpu" in body) == ("cpu" in body), "exactly one of gpu or cpu must be set"),
        ("templateId" in body, "the sandbox has no templates"),
        ("cpu" in body, "the sandbox has no CPU pods"),
        (len(body.get("mounts", {})) > 1, "mounts.persistent and mounts.network are mutually exclusive"),
        (body.get("mounts", {}).get("network") == [], "mounts.network must not be empty"),
        (
            bool(body.get("gpu", {}).get("allowedCudaVersions")) and "minCudaVersion" in body.get("gpu", {}),
            "gpu.allowedCudaVersions and gpu.minCudaVersion are mutually exclusive",
        ),
    ]
    for broken, detail in rules:
        if broken:
            raise Problem(400, detail)
