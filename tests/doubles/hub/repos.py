"""Model repositories, read only: information, listing and files at a revision.

Guesses about the real service (each is marked where it is made):
- every file is a plain one in git, none is LFS or xet, whatever its size;
- what a user may not see is 404 with a token and 401 without.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from .state import Answer, HubError, Request, Route, iso, ranged, write_whole

REPO = "([^/]+)/([^/]+)"


class Repos:
    """Each repository is a folder with ``about.json`` and one folder of plain files for each commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()

    def routes(self) -> list[Route]:
        return [
            ("GET", f"/api/models/{REPO}", self._info),
            ("GET", f"/api/models/{REPO}/revision/(.+)", self._info),
            ("GET", f"/api/models/{REPO}/tree/([^/]+)(?:/(.*))?", self._tree),
            ("POST", f"/api/models/{REPO}/paths-info/([^/]+)", self._paths),
            ("GET|HEAD", f"/{REPO}/resolve/([^/]+)/(.+)", self._resolve),
        ]

    def add(self, id_: str, folder: Path, private: bool) -> str:
        """Copy a folder in as the newest commit of ``main``; older commits stay. Returns the commit."""
        files = {p.relative_to(folder).as_posix(): _oid(p.read_bytes()) for p in folder.rglob("*") if p.is_file()}
        commit = hashlib.sha1(json.dumps(sorted(files.items())).encode()).hexdigest()
        home = self.root / id_.replace("/", "--")
        with self._lock:
            if not (home / commit).exists():
                shutil.copytree(folder, home / commit)
            write_whole(home / "about.json", json.dumps({"main": commit, "private": private}).encode())
        return commit

    def _open(self, request: Request, space: str, name: str, revision: str | None) -> tuple[str, Path]:
        """The commit that a branch or a commit names, and its folder."""
        home = self.root / f"{space}--{name}"
        file = home / "about.json"
        about: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"private": True, "main": ""}
        if about["private"] and not (about["main"] and request.who and request.who.user == space):
            # guess: as for private buckets.
            raise HubError(404 if request.who else 401, "Repository not found", "RepoNotFound")
        commit = about["main"] if revision in (None, "main") else str(revision)
        if not commit.isalnum() or not (home / commit).is_dir():
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit, home / commit

    def _info(self, request: Request, space: str, name: str, revision: str | None = None) -> Answer:
        commit, folder = self._open(request, space, name, revision)
        now = iso(int(folder.stat().st_mtime * 1000))
        fixed = {"private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        about = {"_id": commit[:24], "id": f"{space}/{name}", "modelId": f"{space}/{name}", "sha": commit}
        files = [{"rfilename": path} for path in _files(folder)]
        return Answer({**about, **fixed, "lastModified": now, "createdAt": now, "siblings": files})

    def _tree(self, request: Request, space: str, name: str, revision: str, prefix: str | None) -> Answer:
        _, folder = self._open(request, space, name, revision)
        top = folder / (prefix or "")
        if not top.is_dir() or not top.resolve().is_relative_to(folder.resolve()):
            raise HubError(404, "Entry not found", "EntryNotFound")
        deep = request.query.get("recursive", "").lower() in ("true", "1")
        listed: list[dict[str, Any]] = []
        for path in sorted(top.rglob("*") if deep else top.iterdir()):
            inside = path.relative_to(folder).as_posix()
            folded = {"type": "directory", "path": inside, "size": 0, "oid": "0" * 40}
            listed.append(folded if path.is_dir() else _listed(folder, inside))
        return Answer(listed)

    def _paths(self, request: Request, space: str, name: str, revision: str) -> Answer:
        _, folder = self._open(request, space, name, revision)
        form = request.json() if request.body[:1] == b"{" else parse_qs(request.body.decode())
        known = set(_files(folder))
        return Answer([_listed(folder, path) for path in form.get("paths", []) if path in known])

    def _resolve(self, request: Request, space: str, name: str, revision: str, path: str) -> Answer:
        commit, folder = self._open(request, space, name, revision)
        if path not in _files(folder):
            error = HubError(404, "Entry not found", "EntryNotFound")
            error.answer.headers["X-Repo-Commit"] = commit
            raise error
        data = (folder / path).read_bytes()
        # guess: as a plain file; a real repository of weights would name a xet hash here.
        return ranged(request, data, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": commit})


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _listed(folder: Path, path: str) -> dict[str, Any]:
    data = (folder / path).read_bytes()
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
