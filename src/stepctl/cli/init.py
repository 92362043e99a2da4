"""``stepctl init``: a stepctl.toml to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepctl.base.errors import UsageError
from stepctl.base.files import write_new
from stepctl.cli.output import Output
from stepctl.config.describe import example_toml
from stepctl.config.values import TOML_NAME


def init(
    path: Annotated[Path, typer.Argument(help="Folder of the project.", show_default="here")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a stepctl.toml with every setting at its default, commented out.

    An existing one is never touched.
    """
    folder = path.expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", next=f"make it first: mkdir -p {folder}", code="not_found")
    file = folder / TOML_NAME
    if not write_new(file, example_toml().encode()):
        raise UsageError(
            f"{file} exists already",
            safe="it was not touched",
            next="edit it, or move it away first; `stepctl config show` tells what it sets",
            code="exists",
        )
    Output(json).result({"state": "done", "path": file}, [f"wrote {file}"])
