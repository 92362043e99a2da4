"""What is generated from the settings model: stepctl.toml.example and the tables of docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepctl.config.fields import PREFIX, Setting, sections, settings, target_kinds
from stepctl.config.sources import OWN_VARIABLES, TOKEN_VARIABLES
from stepctl.config.values import TOML_NAME

_HEAD = f"""\
# Settings of stepctl. Copy this file to {TOML_NAME}, or run `stepctl init`.
#
# Each setting is shown at its default: take away the # in front of one to change it. Empty text means none.
# Options of a command and the environment ({PREFIX}TRAIN__LEARNING_RATE, ...) go before this file.
# Relative paths are relative to the folder of this file. Secrets ({TOKEN_VARIABLES[0]}) belong in the environment.
"""

_OTHER_TARGETS = """\
# Other machines are tables of their own, under names of your choice; docs/settings.md lists all they take.
#
# [targets.box]
# kind = "ssh"
# host = "box.example.org"
#
# [targets.cloud]
# kind = "runpod"
# max_hours = 4
# max_cost_usd = 5
"""

_PAGE = """\
# Settings

This page is generated from the settings model: `python scripts/generate_docs.py`.

A setting comes from the first of these that gives it; `stepctl config show` tells which one did:

1. the option of the command;
2. `{prefix}*` in the environment: sections and keys joined by `__`, in any case after the prefix. Lists are separated
   by commas, or JSON. An empty variable counts as not set;
3. the plain name in the environment, where the table has one;
4. `{toml}`, in the current folder or the nearest one above it;
5. the default.

Relative paths of options and the environment are relative to the current folder, those of `{toml}` and of defaults to
the folder of `{toml}`. An unknown key is an error. A boolean is never a number, a whole number has no decimal point.
`BUCKET_ID=namespace/name` means `hf://buckets/namespace/name`. Where no value is the default, empty text means none.

{tables}
## Targets

Each table `[targets.NAME]` names a place to train on, and `kind` says what it is. `local` always exists.

{targets}
## Secrets

Secrets come from the environment alone; {toml} is refused when it holds one.

| variable | meaning |
|---|---|
{secrets}

## Other variables

| variable | meaning |
|---|---|
{others}
"""


def toml_value(value: object) -> str:
    """``value`` as TOML; None as empty text."""
    if value is None:
        return '""'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_value(key)} = {toml_value(item)}' for key, item in value.items())}}}"
    return str(value)


def example_toml() -> str:
    """A stepctl.toml with every setting at its default, commented out.

    Prose is behind ``# ``, settings behind ``#``: with each leading ``#`` that no space follows taken away, it is the
    defaults still. The headers of tables are not commented out, so that a setting freed alone is in the right one.
    """
    parts = [_HEAD, *map(_example_entry, _of_section(""))]
    for section, note in sections().items():
        parts += [f"[{section}]\n# {note}\n", *map(_example_entry, _of_section(section))]
    for kind, fields in target_kinds().items():
        if not any(setting.required for setting in fields.values()):
            parts += [f'[targets.{kind}]\nkind = "{kind}"\n', *map(_example_entry, fields.values())]
    return "\n".join((*parts, _OTHER_TARGETS))


def _of_section(section: str) -> list[Setting]:
    return [setting for setting in settings().values() if setting.section == section]


def _example_entry(setting: Setting) -> str:
    told = all(f'"{choice}"' in setting.description for choice in setting.choices) and not setting.limits
    value = "" if told else f" Value: {setting.expected}."
    return f"# {setting.description}{value}\n#{setting.key} = {toml_value(setting.default)}\n"


def settings_table(rows: Iterable[Setting]) -> str:
    """A Markdown table of settings."""
    return "\n".join(("| setting | meaning | value | default | elsewhere |", "|---|---|---|---|---|", *map(_row, rows)))


def _row(setting: Setting) -> str:
    elsewhere = [*filter(None, (setting.option, setting.env, setting.plain))]
    cells = (
        _code(setting.name),
        setting.description,
        setting.expected,
        "required" if setting.required else "none" if setting.default is None else _code(toml_value(setting.default)),
        ", ".join(map(_code, elsewhere)),
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`"


def settings_page() -> str:
    """The content of docs/settings.md."""
    return _PAGE.format(
        prefix=PREFIX,
        toml=TOML_NAME,
        tables="\n".join(_tables()),
        targets="\n\n".join(f"Kind `{kind}`:\n\n{settings_table(f.values())}\n" for kind, f in target_kinds().items()),
        secrets="\n".join(_secret_rows()),
        others="\n".join(f"| `{name}` | {meaning} |" for name, meaning in OWN_VARIABLES.items()),
    )


def _tables() -> Iterator[str]:
    yield f"## Top level\n\n{settings_table(_of_section(''))}\n"
    for section, note in sections().items():
        yield f"## `[{section}]`\n\n{note}\n\n{settings_table(_of_section(section))}\n"


def _secret_rows() -> Iterator[str]:
    first, *older = TOKEN_VARIABLES
    yield f"| `{first}` | The Hugging Face token. |"
    yield from (f"| `{name}` | An older name of the same, read when `{first}` is not set. |" for name in older)
