"""Which paths a client may name."""

from __future__ import annotations

import os
from pathlib import Path


def within(workdir: Path, path: Path) -> Path:
    """``path`` with its links resolved, when that is strictly below ``workdir``.

    Raises:
        OSError: it is not.
    """
    root, real = Path(os.path.realpath(workdir)), Path(os.path.realpath(path))
    if real == root or root not in real.parents:
        raise OSError(f"{path} is not below {workdir}")
    return real
