"""A content that is a list of parts: texts, joined with nothing between."""

from __future__ import annotations

from typing import Any

from stepctl.traces.formats.values import kind
from stepctl.traces.shapes.columns import Found

_TEXTS = ("text", "input_text", "output_text")
_MEDIA = "only text can be trained; leave the row out"
_THINKING = "write it as `reasoning_content` beside `content`"
_PARTS = {
    **dict.fromkeys(
        (
            "image",
            "image_url",
            "input_image",
            "video",
            "video_url",
            "input_video",
            "audio",
            "audio_url",
            "input_audio",
            "file",
            "input_file",
            "document",
        ),
        _MEDIA,
    ),
    **dict.fromkeys(("thinking", "reasoning", "redacted_thinking"), _THINKING),
    **dict.fromkeys(("tool_use", "tool_call", "function_call"), "write calls as `tool_calls` beside `content`"),
    "tool_result": "write it as a message of the role tool",
    "refusal": "write it as text if the model shall learn it",
}


def content_of(field: str, each: str, parts: list[Any], found: Found) -> str | None:
    """The text of a list of parts; None, and a flaw for each part that is none, when there is one.

    Args:
        field: of the content.
        each: the same for any message of its list, for names of keys that are not used.
        parts: the list.
        found: where flaws and names go.
    """
    before = len(found.flaws)
    texts = [_text(f"{field}[{number}]", f"{each}[]", part, found) for number, part in enumerate(parts)]
    return "".join(texts) if len(found.flaws) == before else None


def _text(place: str, each: str, part: Any, found: Found) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        found.flaw(place, f'is {kind(part)}, not a part {{"type": "text", "text": ...}}')
        return ""
    name = part.get("type")
    if name not in _TEXTS:
        known = name if isinstance(name, str) and name in _PARTS else None
        what = f"of type {known}" if known else "without a type" if name is None else "of an unknown type"
        mend = _PARTS[known] if known else 'a text is written as {"type": "text", "text": ...}'
        found.flaw(place, f"is a part {what}: {mend}")
        return ""
    text = part.get("text")
    if not isinstance(text, str):
        found.flaw(
            f"{place}.text", f"is {kind(text)}, not a string" if "text" in part else "is missing: write a string"
        )
        return ""
    for key, value in part.items():
        if key in _PARTS and value not in (None, [], {}, ""):
            found.flaw(place, f"is a part of text that also has {key}: {_PARTS[key]}")
        elif key not in ("type", "text") and value is not None:
            found.ignored.append(f"{each}.{key}")
    return text
