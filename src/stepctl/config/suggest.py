"""The nearest known name to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable

from stepctl.config.fields import PLAIN, settings

STRICT = 0.75
"""Similarity (of difflib, 0 to 1) from which an unknown environment variable counts as a mistyped one of ours."""


def nearest_setting(name: str, cutoff: float = 0.6) -> str | None:
    """The setting that ``name`` (dotted) most likely means, or None.

    The same last part in another section comes first: ``learning_rate`` means ``train.learning_rate``.
    """
    name = name.lower().replace("-", "_")
    key = name.rpartition(".")[2]
    known = list(settings().values())
    for setting in known:
        if key == setting.key or key.upper() == PLAIN.get(setting.name):
            return setting.name
    found = nearest(name, (s.name for s in known), cutoff)
    if found is not None:
        return found
    by_key = nearest(key, (s.key for s in known), max(cutoff, STRICT))
    return next((s.name for s in known if s.key == by_key), None)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of ``known`` most similar to ``name``, or None."""
    # Imported here: only errors need it, and every command pays for what is imported above.
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), 1, cutoff)), None)


def did_you_mean(name: str | None) -> str:
    """The end of a message."""
    return f": did you mean {name}?" if name else ""
