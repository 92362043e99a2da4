"""Storage buckets: names of files that point at content in the xet data plane.

Guesses about the real service (each is marked where it is made):
- a new bucket is public unless the client asks for a private one;
- who may not see a private bucket gets 404, without a token 401; who may see but not write it gets 403;
- creating in a foreign namespace is 403;
- the operations of a batch are applied in line order and each for itself; deleting a missing path fails;
- all files of one batch get the same ``uploadedAt``, in milliseconds; ``mtime`` is what the client says;
- a listing is in order of paths, directories first, and pages hold at most 1000 entries;
- a path with empty or dotted parts is refused.
"""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cas import Cas
from .faults import Dropped
from .state import Answer, Clock, HubError, Request, Route, Who, iso, ranged, write_whole

BUCKET = "/api/buckets/([^/]+)/([^/]+)"


@dataclass
class File:
    size: int
    hash: str
    mtime: int
    uploaded: int

    def listed(self, path: str) -> dict[str, Any]:
        times = {"mtime": iso(self.mtime), "uploadedAt": iso(self.uploaded)}
        return {"type": "file", "path": path, "size": self.size, "xetHash": self.hash, **times}


@dataclass
class Bucket:
    id: str
    private: bool
    created: int
    files: dict[str, File]

    def info(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "private": self.private,
            "createdAt": iso(self.created),
            "size": sum(file.size for file in self.files.values()),
            "totalFiles": len(self.files),
        }


class Buckets:
    """All buckets, each in one file under ``root``, written whole after every change."""

    def __init__(self, root: Path, cas: Cas) -> None:
        self.root, self.cas = root, cas
        self.page = 1000  # guess: entries on a page of a listing
        self.clock = Clock()
        self._lock = threading.RLock()
        self._buckets: dict[str, Bucket] = {}
        for path in sorted(root.glob("*.json")):
            kept = json.loads(path.read_text())
            kept["files"] = {name: File(**file) for name, file in kept["files"].items()}
            self._buckets[kept["id"]] = Bucket(**kept)

    def routes(self) -> list[Route]:
        return [
            ("POST", BUCKET, self._create),
            ("GET", BUCKET, self._info),
            ("DELETE", BUCKET, self._delete),
            ("GET", "/api/buckets/([^/]+)", self._list),
            ("GET", f"{BUCKET}/tree(?:/(.*))?", self._tree),
            ("POST", f"{BUCKET}/paths-info", self._paths),
            ("GET", f"{BUCKET}/xet-(read|write)-token", self._token),
            ("POST", f"{BUCKET}/batch", self._batch),
            ("GET|HEAD", "/buckets/([^/]+)/([^/]+)/resolve/(.+)", self._resolve),
        ]

    def _save(self, bucket: Bucket) -> None:
        write_whole(self.root / f"{bucket.id.replace('/', '--')}.json", json.dumps(asdict(bucket)).encode())

    def find(self, id_: str) -> Bucket:
        if id_ not in self._buckets:
            raise HubError(404, "Repository not found", "RepoNotFound")
        return self._buckets[id_]

    def _open(self, request: Request, space: str, name: str, write: bool = False) -> Bucket:
        who = request.who
        bucket = self._buckets.get(f"{_space(space, who)}/{name}")
        owner = who is not None and bucket is not None and bucket.id.startswith(f"{who.user}/")
        if bucket is None or (bucket.private and not owner):
            # guess: what a user may not see looks as if it were not there.
            raise HubError(404 if who else 401, "Repository not found", "RepoNotFound")
        if write and not (owner and who and who.role == "write"):
            raise HubError(403 if who else 401, "You do not have write access to this bucket")
        return bucket

    def _create(self, request: Request, space: str, name: str) -> Answer:
        who = request.who
        space = _space(space, who)
        if who is None or who.role != "write" or who.user != space:
            # guess: the same answer for a token that only reads and for a foreign namespace.
            raise HubError(403 if who else 401, "You do not have the rights to create a bucket in this namespace")
        id_ = f"{space}/{name}"
        about = {"id": id_, "name": id_, "url": f"{request.base}/buckets/{id_}"}
        with self._lock:
            if id_ in self._buckets:
                raise HubError(409, "You already created this bucket", **about)
            # guess: public unless asked otherwise.
            private = request.json().get("visibility") == "private"
            self._buckets[id_] = Bucket(id_, private, int(time.time() * 1000), {})
            self._save(self._buckets[id_])
        return Answer(about)

    def _info(self, request: Request, space: str, name: str) -> Answer:
        return Answer(self._open(request, space, name).info())

    def _list(self, request: Request, space: str) -> Answer:
        space = _space(space, request.who)
        mine = request.who is not None and request.who.user == space
        seen = [b for b in self._buckets.values() if b.id.startswith(f"{space}/") and (mine or not b.private)]
        return Answer([bucket.info() for bucket in seen if request.query.get("search", "") in bucket.id])

    def _delete(self, request: Request, space: str, name: str) -> Answer:
        bucket = self._open(request, space, name, write=True)
        with self._lock:
            del self._buckets[bucket.id]
            (self.root / f"{bucket.id.replace('/', '--')}.json").unlink()
        return Answer({})

    def _tree(self, request: Request, space: str, name: str, prefix: str | None) -> Answer:
        bucket = self._open(request, space, name)
        with self._lock:
            files = sorted(
                (p, f) for p, f in bucket.files.items() if p.startswith(prefix or "")
            )  # by text, not by folder
        recursive = request.query.get("recursive", "").lower() == "true"
        # guess: in order of paths.
        listed = [f.listed(p) for p, f in files] if recursive else _level(files, prefix or "")
        start = int(request.query.get("cursor", "0"))
        end = start + self.page
        headers = {}
        if end < len(listed):
            query = f"cursor={end}" + ("&recursive=true" if recursive else "")
            headers["Link"] = f'<{request.base}{request.path}?{query}>; rel="next"'
        return Answer(listed[start:end], headers=headers)

    def _paths(self, request: Request, space: str, name: str) -> Answer:
        files = self._open(request, space, name).files
        return Answer([files[path].listed(path) for path in request.json()["paths"] if path in files])

    def _token(self, request: Request, space: str, name: str, kind: str) -> Answer:
        self._open(request, space, name, write=kind == "write")
        return self.cas.token(kind, request.base)

    def _batch(self, request: Request, space: str, name: str) -> Answer:
        bucket = self._open(request, space, name, write=True)
        operations = [json.loads(line) for line in request.body.splitlines() if line.strip()]
        failed = []
        with self._lock:
            now = self.clock.tick()  # guess: one time for the whole batch
            for operation in operations[: request.cut]:
                # guess: in line order, each for itself.
                path = operation["path"]
                try:
                    if request.refuse and re.search(request.refuse, path):
                        raise ValueError("a fault that the test asked for")
                    self._apply(bucket, operation, now)
                except ValueError as error:
                    failed.append({"path": path, "error": str(error)})
            self._save(bucket)
        if request.cut is not None:
            raise Dropped
        done = len(operations) - len(failed)
        answer = {"success": not failed, "processed": len(operations), "succeeded": done, "failed": failed}
        return Answer(answer, 200 if done or not failed else 422)

    def _apply(self, bucket: Bucket, operation: dict[str, Any], now: int) -> None:
        path, kind = operation["path"], operation["type"]
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise ValueError("Invalid path")  # guess
        if kind == "deleteFile":
            if bucket.files.pop(path, None) is None:
                raise ValueError("File not found")  # guess: deleting what is not there is an error
            return
        if kind == "copyFile":
            source = self._buckets.get(operation["sourceRepoId"])
            if not source or all(file.hash != operation["xetHash"] for file in source.files.values()):
                raise ValueError("Source file not found")
        size = self.cas.size(operation["xetHash"])
        if size is None:
            raise ValueError("Unknown xetHash")
        bucket.files[path] = File(size, operation["xetHash"], operation["mtime"], now)

    def _resolve(self, request: Request, space: str, name: str, path: str) -> Answer:
        file = self._open(request, space, name).files.get(path)
        if file is None:
            raise HubError(404, "Entry not found", "EntryNotFound")
        refresh = f"{request.base}/api/buckets/{_space(space, request.who)}/{name}/xet-read-token"
        headers = {
            "ETag": f'"{file.hash}"',
            "X-Xet-Hash": file.hash,
            "X-Linked-Size": str(file.size),
            "Link": f'<{refresh}>; rel="xet-auth"',
        }
        if request.method == "HEAD":
            return Answer(headers=headers | {"Content-Length": str(file.size)})
        return ranged(request, self.cas.content(file.hash), headers)

    # Behind the client's back.

    def remove(self, id_: str, path: str) -> None:
        bucket = self.find(id_)
        with self._lock:
            del bucket.files[path]
            self._save(bucket)

    def date(self, id_: str, path: str, uploaded: int) -> None:
        bucket = self.find(id_)
        with self._lock:
            bucket.files[path].uploaded = uploaded
            self._save(bucket)


def _space(space: str, who: Who | None) -> str:
    if space != "me":
        return space
    if who is None:
        raise HubError(401, "Invalid username or password.")
    return who.user


def _level(files: list[tuple[str, File]], prefix: str) -> list[dict[str, Any]]:
    """The files directly under a prefix, and the folders that the others are in."""
    at = len(prefix)
    if prefix and any(path.startswith(prefix.rstrip("/") + "/") for path, _ in files):
        at = len(prefix.rstrip("/")) + 1
    plain, folders = [], dict[str, int]()
    for path, file in files:
        cut = path.find("/", at)
        if cut < 0:
            plain.append(file.listed(path))
        else:
            folders[path[:cut]] = max(folders.get(path[:cut], 0), file.uploaded)
    return [{"type": "directory", "path": p, "uploadedAt": iso(t)} for p, t in sorted(folders.items())] + plain
