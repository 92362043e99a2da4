"""Text of others on a terminal."""

from __future__ import annotations


def visible(text: str) -> str:
    """``text`` with the controls of a terminal as their symbols: it must not act on one. Lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _symbol(each) for each in text)


def _symbol(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 32 else f"\\u{code:04x}"
