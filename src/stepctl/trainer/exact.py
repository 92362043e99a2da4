"""Whether a resume can promise the bytes that one unsplit call would have made."""

from __future__ import annotations

from collections.abc import Mapping

FIELDS = (
    "torch",
    "transformers",
    "peft",
    "trl",
    "threads",
    "device",
    "device_map",
    "precision",
    "cpu_capability",
    "cpu",
    "attention",
    "chat_template",
)
"""The entries of a manifest's ``versions`` that change how numbers are rounded or in which order they are added; the
last stands for how a model's folder renders conversations, which changes the tokens."""

_WHOLE = {"device_map": "whole"}


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What of :data:`FIELDS` differs, each as ``threads: 2 -> 1``; what one side did not record is passed over."""
    old, new = {**_WHOLE, **before}, {**_WHOLE, **now}
    both = [name for name in FIELDS if name in old and name in new]
    return [f"{name}: {old[name]} -> {new[name]}" for name in both if old[name] != new[name]]
