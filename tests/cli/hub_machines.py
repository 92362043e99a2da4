"""Machines that share a bucket of the emulated Hub: projects with nothing else in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.doubles.hub import Hub
from tests.doubles.project import Project, tokenizer_folder


def machine(hub: Hub, url: str, folder: Path, *, model: Path | None = None, token: str = Hub.write) -> Project:
    """A project in a home of its own; the stand-in trains."""
    folder.mkdir()
    project = Project(folder, model=model, toml=f'bucket = "{url}"')
    project.env.update(hub.env(folder / "home" / "hf", token), HF_XET_CLIENT_RETRY_BASE_DELAY="20ms")
    return project


def shared_model(base: Path) -> Path:
    """One base model for all machines: a lineage has one."""
    return tokenizer_folder(base / "model")


def bucket_of(url: str) -> str:
    return "/".join(url.split("/")[3:5])


def trained(hub: Hub, project: Project, url: str) -> int:
    """Rows that the head's chain of hashes holds."""
    head = project.status()["head"]
    if head is None:
        return 0
    prefix = "/".join([*url.split("/")[5:], "main/checkpoints", head])
    state: dict[str, Any] = json.loads(hub.content(bucket_of(url), f"{prefix}/optimizer.safetensors"))
    count: int = state["trained"]
    return count
