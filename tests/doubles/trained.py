"""Projects in which something is trained already: made once, and copied for each test that starts from there."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.doubles.project import Project, rows


class Chain:
    """Runs of one step each with the keys k0, k1, ..., and a copy of what was there after each of them."""

    def __init__(self, folder: Path) -> None:
        (folder / "project").mkdir()
        self.project, self.copies, self.names = Project(folder / "project"), folder, list[str]()

    def into(self, project: Project, count: int) -> list[str]:
        """Make ``project``, an empty one, what it would be after ``count`` runs; returns their checkpoints."""
        for i in range(len(self.names), count):
            trace = self.project.trace(f"{i}.jsonl", rows(4, 10 * i))
            self.names.append(self.project.train(trace, "--key", f"k{i}")["checkpoint"])
            for part in ("checkpoints", "runs"):
                shutil.copytree(self.project.path / part, self.copies / str(i + 1) / part)
        for part in ("checkpoints", "runs"):
            shutil.copytree(self.copies / str(count) / part, project.path / part)
        for path in project.path.glob("runs/*/*.json"):
            path.write_text(path.read_text().replace(str(self.project.path), str(project.path)))
        for i in range(count):
            project.trace(f"{i}.jsonl", rows(4, 10 * i))
        return self.names[:count]
