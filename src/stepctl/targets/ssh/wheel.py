"""The running stepctl as a wheel for a machine that trains: the rooms that a job needs, and what they need."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import stepctl

ROOMS = ("agent", "base", "config", "jobs", "lineage", "models", "runs", "traces", "trainer")
"""What runs there; the rest of stepctl stays here, and so do the packages that only it needs."""

NEEDS = (
    "msgspec>=0.20",
    "psutil>=6",
    "tokenizers>=0.22",
    "jinja2>=3.1.6",
    "zstandard>=0.23",
    "huggingface_hub>=2.4",
    "hf_xet>=1.8",
    "torch>=2.6",
    "transformers>=5.0",
    "trl>=1.0",
    "peft>=0.18",
    "datasets>=4.0",
    "safetensors>=0.5",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Wheel:
    """``digest`` is over the files' content: the same stepctl has the same one everywhere."""

    name: str
    data: bytes
    digest: str


def build() -> Wheel:
    """The wheel of this stepctl, made from its own files: no build tool, no network, the same bytes each time."""
    files = dict(_files())
    info = f"stepctl-{stepctl.__version__}.dist-info"
    needs = "".join(f"Requires-Dist: {need}\n" for need in NEEDS)
    about = f"Metadata-Version: 2.1\nName: stepctl\nVersion: {stepctl.__version__}\nRequires-Python: >=3.11\n{needs}"
    files[f"{info}/METADATA"] = about.encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: stepctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    files[f"{info}/RECORD"] = record.encode()
    digest, out = hashlib.sha256(), io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
            about_file = zipfile.ZipInfo(name, _EPOCH)
            about_file.external_attr = 0o644 << 16
            archive.writestr(about_file, data, zipfile.ZIP_DEFLATED)
    return Wheel(f"stepctl-{stepctl.__version__}-py3-none-any.whl", out.getvalue(), digest.hexdigest())


def _files() -> Iterator[tuple[str, bytes]]:
    root = Path(stepctl.__file__).parent
    yield "stepctl/__init__.py", (root / "__init__.py").read_bytes()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".pyo") and "__pycache__" not in path.parts:
                yield f"stepctl/{path.relative_to(root).as_posix()}", path.read_bytes()


def pins() -> str:
    """The tested version of every package that a machine needs, one a line."""
    return (Path(__file__).parent / "pins.txt").read_text()
