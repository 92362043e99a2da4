"""What a file is, told from its first bytes and never from its name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, Literal, NamedTuple

from stepctl.traces.formats.blocks import Blocks
from stepctl.traces.formats.packed import GZIP, ZSTANDARD
from stepctl.traces.formats.values import BLANK, BOM, Decoder, Syntax

Form = Literal["lines", "array", "pretty", "parquet"]
EXPECTED = (
    "JSON lines, a JSON array or pretty-printed JSON objects in UTF-8 (also gzip- or zstandard-compressed), or "
    "Parquet, are expected"
)
_HEAD = 1 << 18
_TITLES: dict[Form, str] = {
    "lines": "JSON lines",
    "array": "a JSON array",
    "pretty": "pretty-printed JSON objects",
    "parquet": "Parquet",
}
_PACKED = ((GZIP, "gzip"), (ZSTANDARD, "zstandard"))
_NATURES = (
    (GZIP, "gzip-compressed"),
    (ZSTANDARD, "zstandard-compressed"),
    (b"PAR1", "a Parquet file"),
    (b"PARE", "an encrypted Parquet file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"PK\x07\x08", "a zip archive"),
    (b"\xfd7zXZ\0", "xz-compressed"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x04\x22\x4d\x18", "lz4-compressed"),
    (b"%PDF-", "a PDF document"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"ARROW1\0\0", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream, or bytes of another kind"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"GGUF", "a GGUF model"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer instead of the file (git lfs pull gets it)"),
    (b"\xff\xfe\x00\x00", "UTF-32 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_BZIP2 = re.compile(rb"BZh[1-9]1AY&SY")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_HTML = re.compile(r"<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_OPEN_ALONE = re.compile(rf"^{BOM}?\{{[ \t]*\r?\n(?!\{{)", re.MULTILINE)


class Sniffed(NamedTuple):
    """``refusal`` is the reason why a file has none of the forms, or None. ``title`` is the form's name for people."""

    form: Form
    packing: str
    title: str
    refusal: str | None


def sniff(file: BinaryIO) -> Sniffed:
    """Tell the form of a file that is at its beginning; reads more than its first bytes only past white space."""
    first = file.read(_HEAD)
    packing = next((name for magic, name in _PACKED if first.startswith(magic)), "")
    if not packing and first.startswith(b"PAR1"):
        return Sniffed("parquet", "", _TITLES["parquet"], None)
    file.seek(0)
    start, head = _heads(Blocks(file, packing))
    nature = _nature(start)
    form, strange = ("lines", None) if nature else _form(head)
    suffix = f", {packing}-compressed" if packing else ""
    if nature is None and strange is None:
        return Sniffed(form, packing, _TITLES[form] + suffix, None)
    inside = f"is {packing}-compressed, and what is in it" if packing else ""
    what = f"{inside} is not UTF-8 text" if nature else f"{inside} is not JSON"
    said = f"it is {nature}" if nature else f"it {strange}"
    refusal = f"the file {what.strip()} at byte 0: {said}; {EXPECTED}"
    return Sniffed("lines", packing, (nature or "text that is not JSON") + suffix, refusal)


def _heads(blocks: Blocks) -> tuple[bytes, bytes]:
    """The first bytes as they are, and from the first on that is no white space."""
    start, head = b"", b""
    for block in blocks:
        if len(start) < _HEAD:
            start += block
            head = start.removeprefix(BOM.encode()).lstrip(BLANK.encode())
        else:
            head = (head + block).lstrip(BLANK.encode())
        if len(head) >= _HEAD:
            break
    return start[:_HEAD], head[:_HEAD]


def _nature(data: bytes) -> str | None:
    """What ``data`` is when it is no UTF-8 text at all."""
    return next((nature for found, nature in _signs(data) if found), None)


def _signs(data: bytes) -> Iterator[tuple[bool, str]]:
    yield bool(data) and not data.strip(b"\0"), "only zero bytes (NUL), as in a file that was never written to its end"
    # It begins with the length of its JSON header.
    yield data[8:9] == b"{" and data[4:8] == bytes(4) and any(data[:4]), "a safetensors file"
    yield from ((data.startswith(magic), nature) for magic, nature in _NATURES)
    yield _BZIP2.match(data) is not None, "bzip2-compressed"
    yield _PICKLE.match(data) is not None, "a pickle"
    yield data[257:262] == b"ustar", "a tar archive"
    yield data[:4] == bytes(4), "zero bytes (NUL), and then something else"
    yield len(data) > 3 and bytes(3) in (data[:3], data[1:4]), "UTF-32 text without a byte-order mark"
    yield len(data) > 3 and 0 in data[:2] and data[:2] != b"\0\0", "UTF-16 text without a byte-order mark"
    text = data.removeprefix(BOM.encode()).lstrip(BLANK.encode())
    if _CONTROL.search(data) and text[:1] not in b'{["' and not any(map(_like_json, data.split(b"\n"))):
        yield data[:1] == b"\x1e", "a JSON text sequence (RFC 7464)"
        yield True, "binary data of an unknown kind"


def _like_json(line: bytes) -> bool:
    """Whether a line could be meant as an object."""
    try:
        return line.decode().removeprefix(BOM).lstrip(BLANK).startswith("{") and not _CONTROL.search(line)
    except UnicodeDecodeError:
        return False


def _form(head: bytes) -> tuple[Form, str | None]:
    """The form of a text that begins with ``head``, and why it is not JSON, if no line of it is."""
    text = head.decode(errors="replace")
    if text.startswith("["):
        return ("lines" if _list_on_line(text) else "array"), None
    if text.startswith("{"):
        return ("pretty" if _pretty(text) else "lines"), None
    if text.startswith("<"):
        return "lines", "looks like HTML" if _HTML.match(text) else "looks like XML or HTML"
    lines = [line for line in text.split("\n")[:10_000] if line.strip(BLANK)]
    if len(lines) < 2 or any(map(_is_json, lines)):
        return "lines", None
    return "lines", "looks like " + (
        "CSV" if "," in lines[0] else "tab-separated values" if "\t" in lines[0] else "plain text: no line is JSON"
    )


def _is_json(line: str) -> bool:
    stripped = line.removeprefix(BOM).strip(BLANK)
    if stripped.startswith(("{", "[")):
        return True
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return False
    return True


def _list_on_line(text: str) -> bool:
    """Whether the first line is a list of its own, and more follows."""
    try:
        _, end, _ = Decoder().decode(text, 0)
    except Syntax:
        return False
    return "\n" not in text[:end] and bool(text[end:].strip(BLANK))


def _pretty(text: str) -> bool:
    """Whether objects go over several lines: the first does, or a bracket stands alone on a line."""
    line, _, rest = text.partition("\n")
    try:
        Decoder().decode(line, 0)
    except Syntax as error:
        unfinished = error.early and not line[error.position :].strip(BLANK)
        if unfinished and rest.strip(BLANK) and not rest.lstrip(BLANK).startswith("{"):
            return True
    return _OPEN_ALONE.search(text) is not None
