"""``stepctl doctor``: whether this machine can train, and what is in the way."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepctl.base.errors import StepctlError
from stepctl.cli.options import Bucket, Json
from stepctl.cli.output import Output

if TYPE_CHECKING:
    from stepctl.calls.world import World

GIB = 1 << 30
_HUB_SEC = 5.0


@dataclass(frozen=True)
class Check:
    """``level`` is ok, note (nothing that local training needs) or bad; ``mend`` is what to type."""

    name: str
    level: str
    text: str
    mend: str = ""


def doctor(bucket: Bucket = None, json: Json = False) -> int:
    """Check Python, torch, device, precision, memory, disk, bucket, token, Hub and ssh (exit 1 when one is bad)."""
    from stepctl.cli.session import open_world

    output = Output(json)
    world = open_world(output, {"bucket": bucket})
    checks = [*_trainer(world), _memory(), _disk(world), _bucket(world), _token(world), _hub(), _ssh()]
    bad = any(check.level == "bad" for check in checks)
    document = {"state": "bad" if bad else "ok", "checks": [vars(check) for check in checks], "exit_code": int(bad)}
    output.result(document, _lines(checks))
    return int(bad)


def _lines(checks: list[Check]) -> Iterator[str]:
    for check in checks:
        yield f"{check.level:<4} {check.name:<9} {check.text}"
        if check.mend:
            yield f"{'':<15}next: {check.mend}"


def _trainer(world: World) -> Iterator[Check]:
    import msgspec

    from stepctl.config.model import LocalTarget
    from stepctl.targets.local import run_helper

    settings = world.loaded.settings
    train = settings.train
    ask = msgspec.json.encode({"device": train.device, "precision": train.precision, "gpu_ids": train.gpu_ids})
    target = settings.targets[settings.target]
    # The Python of another machine cannot be asked from here.
    python = target.python if isinstance(target, LocalTarget) else None
    yield Check("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")
    try:
        probe = msgspec.json.decode(run_helper("probe", ask, python))
    except StepctlError as error:
        yield Check("torch", "bad", error.message, error.next)
        return
    if probe.get("errors") or "packages" not in probe:
        errors = probe.get("errors") or {"trainer": probe["error"]["message"]}
        text = "; ".join(f"{name}: {why}" for name, why in errors.items())
        yield Check("torch", "bad", text, "pip install 'stepctl[train]'")
        return
    yield Check("torch", "ok", ", ".join(f"{name} {version}" for name, version in probe["packages"].items()))
    yield from _device(probe)


def _device(probe: dict[str, Any]) -> Iterator[Check]:
    """What the settings lead to, and every GPU that could be used; indices are of the visible ones."""
    refused = probe["refused"]
    gpus = [
        f"cuda:{g['index']} {g['name']} ({g['memory_bytes'] / GIB:.0f} GiB, capability {g['capability']})"
        for g in probe["gpus"]
    ]
    together = f"; {sum(g['memory_bytes'] for g in probe['gpus']) / GIB:.0f} GiB together" if len(gpus) > 1 else ""
    there = f"{', '.join(gpus) or 'no GPU'}{together}; {probe['threads']} threads, {probe['cpu_capability']}"
    if refused:
        yield Check("device", "bad", f"{refused['message']}; here: {there}", refused["next"])
        return
    yield Check("device", "ok", f"{probe['device']}; {there}")
    speed = f"bf16 products run at {probe['bf16_speed']:.1f} times the speed of fp32 here"
    yield Check("precision", "ok", f"{probe['precision']} ({probe['reason']}); {speed}")


def _memory() -> Check:
    import psutil

    free = psutil.virtual_memory().available / GIB
    text = f"{free:.1f} GiB free"
    return Check("memory", "ok", text) if free >= 2 else Check("memory", "note", f"{text}: little for a model")


def _disk(world: World) -> Check:
    folder = world.loaded.project
    free = shutil.disk_usage(folder).free / GIB
    text = f"{free:.1f} GiB free at {folder}"
    return Check("disk", "ok", text) if free >= 1 else Check("disk", "bad", text, "make room")


def _bucket(world: World) -> Check:
    try:
        bucket = world.bucket()
        bucket.check_writable()
    except (StepctlError, OSError) as error:
        message = error.message if isinstance(error, StepctlError) else str(error)
        if getattr(error, "code", "") == "hub_no_bucket":
            return Check("bucket", "note", message, error.next)  # type: ignore[union-attr]
        return Check("bucket", "bad", message, getattr(error, "next", "") or "choose another: --bucket DIR")
    return Check("bucket", "ok", f"{bucket.url} can be written")


def _token(world: World) -> Check:
    source = world.loaded.hf_token_source
    if source:
        return Check("token", "ok", f"from {source}")
    return Check("token", "note", "no HF_TOKEN: public models only")


def _hub() -> Check:
    """One request, bounded in time, to the Hub that is configured."""
    import urllib.error
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Check("hub", "note", "HF_HUB_OFFLINE is set: models come from the cache or a folder")
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        urllib.request.urlopen(url, timeout=_HUB_SEC).close()  # noqa: S310 - the scheme is the user's own setting
    except urllib.error.HTTPError:
        return Check("hub", "ok", f"{url} answers")
    except (OSError, ValueError):
        return Check("hub", "note", f"{url} cannot be reached", "use a model folder: --model /path/to/model")
    return Check("hub", "ok", f"{url} answers")


def _ssh() -> Check:
    found = shutil.which("ssh")
    if found is None:
        return Check("ssh", "note", "no ssh client (needed for targets on other machines only)")
    keys = sorted(p.name for p in (Path.home() / ".ssh").glob("id_*") if p.suffix != ".pub")
    return Check("ssh", "ok", f"{found}; keys: {', '.join(keys) or 'none'}")
