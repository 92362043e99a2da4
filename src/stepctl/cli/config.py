"""``stepctl config``: which settings a call would have, and where each comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from stepctl.cli.output import Output
from stepctl.config.describe import toml_value
from stepctl.config.fields import flat
from stepctl.config.load import Loaded, load_settings

app = typer.Typer(
    help="Show and check the settings.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
def show(json: Json = False) -> None:
    """Print each setting and where it comes from. Secrets are not shown."""
    output = Output(json)
    loaded = _load(output)
    values = flat(loaded.settings)
    document = {
        "state": "done",
        "project": loaded.project,
        "toml": loaded.toml,
        "settings": {name: {"value": values[name], "source": loaded.sources[name]} for name in values},
        "hf_token": {"set": loaded.hf_token is not None, "source": loaded.hf_token_source},
        "warnings": loaded.warnings,
    }
    output.result(document, _show_lines(loaded, values))


def _show_lines(loaded: Loaded, values: dict[str, object]) -> Iterator[str]:
    yield f"# {_origin(loaded)}"
    rows = [(f"{name} = {toml_value(value)}", loaded.sources[name]) for name, value in values.items()]
    token = "(set, not shown)" if loaded.hf_token else "(not set)"
    rows.append((f"HF_TOKEN {token}", loaded.hf_token_source or "default"))
    width = min(60, max(len(left) for left, _ in rows))
    yield from (f"{left:<{width}}  # {source}" for left, source in rows)


@app.command()
def check(json: Json = False) -> None:
    """Say whether the settings are in order.

    The exit code is 2 when they are not.
    """
    output = Output(json)
    loaded = _load(output)
    document = {"state": "done", "toml": loaded.toml, "given": sorted(loaded.given), "warnings": loaded.warnings}
    output.result(document, [f"ok: {_origin(loaded)}"])


def _load(output: Output) -> Loaded:
    loaded = load_settings({}, os.environ, Path.cwd())
    for warning in loaded.warnings:
        output.warning(warning)
    return loaded


def _origin(loaded: Loaded) -> str:
    return str(loaded.toml) if loaded.toml else f"no stepctl.toml in {loaded.project} or above it"
