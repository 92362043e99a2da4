"""What goes to a machine before a job: folders of here, and where they lie there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepctl.base.archive import ArchiveError, File, files_below, tree_digest
from stepctl.base.errors import StepctlError
from stepctl.targets.base import Freight


@dataclass(frozen=True)
class Load:
    """Files for the folder ``dest``; ``keep``: its name is its content, so that one that is there is the right one."""

    dest: str
    files: list[File]
    digest: str
    keep: bool


def model_folder(root: str, digest: str) -> str:
    """Where a model lies on the machine."""
    return f"{root}/models/{re.sub(r'[^A-Za-z0-9._-]', '-', digest)}"


def loads(freight: Freight, root: str, job: str) -> Iterator[Load]:
    """What must be there, the largest last.

    Raises:
        StepctlError: a folder here cannot be read.
    """
    for folder, name in ((freight.stage, "bucket"), (freight.init, "init")):
        if folder is not None:
            files = _files(folder, links=False)
            yield Load(f"{job}/{name}", files, tree_digest(files), keep=False)
    if freight.model is not None:
        # Its files may be links into a cache; the machine gets what they lead to.
        yield Load(model_folder(root, freight.model_digest), _files(freight.model, links=True), "", keep=True)


def _files(folder: Path, *, links: bool) -> list[File]:
    try:
        return files_below(folder, links=links)
    except (ArchiveError, OSError) as error:
        raise StepctlError(f"{folder} cannot be read: {error}", safe="nothing was trained", next="mend that") from error
