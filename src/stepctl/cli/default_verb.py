"""A group with a default command: ``train FILE`` beside ``train attach RUN``.

A callback with a variadic argument would swallow the verbs, so the group's parsing is overridden, and nothing else.
"""

from __future__ import annotations

from typing import Any

from typer._click.exceptions import ClickException
from typer.core import TyperGroup

from stepctl.base.errors import UsageError

DEFAULT = "default"
"""Name of the hidden default command; it is never shown."""


class DefaultVerbGroup(TyperGroup):
    """Arguments that do not start with a verb go to the hidden command ``DEFAULT``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See the class.

        Raises:
            UsageError: a verb stands somewhere else than first, where it would be taken for a file.
        """
        verbs = [name for name in self.commands if name != DEFAULT]
        if args and args[0] in verbs:
            return super().parse_args(ctx, args)
        for word in self._files(ctx, args):
            if word in verbs:
                raise UsageError(
                    f"{word!r} is a verb here, and stands after other words",
                    next=f"stepctl train {word} ... with its options after it, or ./{word} when it is a file",
                )
        return super().parse_args(ctx, [DEFAULT, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As always, but for the default command, which shows as the group itself."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == DEFAULT else name, command, rest

    def _files(self, ctx: Any, args: list[str]) -> list[str]:
        """The words that the default command would take for files; its own parsing says what is wrong otherwise."""
        default = self.commands[DEFAULT]
        parser = default.make_parser(ctx)
        # The group stops at its first word; a command takes options after it as well.
        parser.allow_interspersed_args = True
        try:
            options, _, _ = parser.parse_args(list(args))
        except ClickException:
            return []
        return [word for word in options.get("traces") or () if isinstance(word, str)]
