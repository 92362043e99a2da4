"""The xet data plane over HTTP: xorbs and shards are uploaded, files are put together from ranges of xorbs.

Guesses about the real service (each is marked where it is made):
- only the first forms of uploads and reconstructions are served; newer ones get 404 and the client falls back;
- a xet token is good for every bucket that the server has, and a write token may read too;
- the chunks that may be found by other clients are a file's first one, those the client flags and one in 1024;
- a shard that names data which the server does not hold is refused;
- a xet token is good for an hour.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import struct
import threading
import time
from pathlib import Path

from . import xet
from .state import Answer, HubError, Request, Route, write_whole
from .xet import Layout, Term

HASH = "([0-9a-f]{64})"


class Cas:
    """Xorbs and shards in files of their own under ``root``; what is known about them is read again at the start."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ttl = 3600.0  # guess: seconds that a token is good for
        self._lock = threading.RLock()
        self._layouts: dict[str, Layout] = {}
        self._files: dict[str, list[Term]] = {}
        self._chunks: dict[str, str] = {}  # chunk that may be deduplicated against: the shard that lists it
        self._refused = 0  # tokens with this serial and older ones have been made to expire
        self.name = self._own_name()
        for file in sorted(root.glob("xorbs/[0-9a-f]*")):
            self._layouts[file.name] = xet.layout_of(file.read_bytes())
        for file in sorted(root.glob("shards/[0-9a-f]*")):
            self._index(xet.shard_of(file.read_bytes()), file.name)
        damage = root / "damage.json"
        self._damage: dict[str, str | None] = json.loads(damage.read_text()) if damage.exists() else {}

    def _own_name(self) -> str:
        # Clients keep a cache keyed by the address: a new store must never look like an old one on the same port.
        file = self.root / "name"
        if not file.exists():
            write_whole(file, f"cas-{secrets.token_hex(4)}".encode())
        return file.read_text()

    def routes(self) -> list[Route]:
        return [
            ("GET", f"/{self.name}/data/{HASH}", self._get_data),
            ("POST", f"/{self.name}/v1/xorbs/default/{HASH}", self._post_xorb),
            ("POST", f"/{self.name}/v1/shards", self._post_shard),
            ("GET", f"/{self.name}/v1/reconstructions/{HASH}", self._get_reconstruction),
            ("GET", f"/{self.name}/v1/chunks/[a-z-]+/{HASH}", self._get_chunk),
            ("POST", "/v1/telemetry", lambda request: Answer({})),  # the client posts it to the host's root
            # guess: newer forms (grants for xorbs, version 2 of shards and of reconstructions) are not there.
        ]

    # Tokens.

    def token(self, kind: str, base: str) -> Answer:
        """A token for the data plane, in the body and in the headers, as the client reads it from either."""
        address = f"{base}/{self.name}"
        expires = int(time.time() + self.ttl)
        # guess: the token is not bound to one bucket.
        token = f"xet:{kind}:{expires}:{time.time_ns()}"
        headers = {
            "X-Xet-Cas-Url": address,
            "X-Xet-Token-Expiration": str(expires),
            "X-Xet-Access-Token": token,
        }
        return Answer({"casUrl": address, "exp": expires, "accessToken": token}, headers=headers)

    def expire(self) -> None:
        """Refuse every token given so far, whatever time it names."""
        self._refused = time.time_ns()

    def _allow(self, request: Request, write: bool = False) -> None:
        found = re.fullmatch(r"Bearer xet:(\w+):(\d+):(\d+)", request.headers.get("Authorization") or "")
        if not found or int(found[2]) < time.time() or int(found[3]) <= self._refused:
            raise HubError(401, "the xet token is wrong or has expired")
        # guess: a write token may read as well.
        if write and found[1] != "write":
            raise HubError(403, "this xet token only reads")

    # Uploads.

    def _post_xorb(self, request: Request, name: str) -> Answer:
        self._allow(request, write=True)
        return Answer({"was_inserted": self._keep_xorb(name, request.body)})

    def _keep_xorb(self, name: str, data: bytes) -> bool:
        layout = xet.layout_of(data)
        with self._lock:
            if name in self._layouts:
                return False
            write_whole(self.root / "xorbs" / name, data)
            self._layouts[name] = layout
        return True

    def _post_shard(self, request: Request) -> Answer:
        self._allow(request, write=True)
        shard = xet.shard_of(request.body)
        # guess: the server checks that it holds all that a shard names.
        for xorb, chunks in shard.xorbs.items():
            if xorb not in self._layouts or len(self._layouts[xorb].sizes) != len(chunks):
                raise HubError(400, f"the shard lists xorb {xorb}, which was not uploaded")
        for file, terms in shard.files.items():
            for term in terms:
                if term.xorb not in self._layouts or self._length(term) != term.size:
                    raise HubError(400, f"file {file} is made of chunks that were not uploaded")
        name = hashlib.sha256(request.body).hexdigest()
        fresh = not (self.root / "shards" / name).exists()
        with self._lock:
            write_whole(self.root / "shards" / name, request.body)
            self._index(shard, name)
        return Answer({"result": int(fresh)})

    def _length(self, term: Term) -> int:
        return sum(self._layouts[term.xorb].sizes[term.start : term.end])

    def _index(self, shard: xet.Shard, name: str) -> None:
        self._files.update(shard.files)
        firsts = {(terms[0].xorb, terms[0].start) for terms in shard.files.values() if terms}
        for xorb, chunks in shard.xorbs.items():
            for index, chunk in enumerate(chunks):
                # guess: these may be found by other clients; the rule of 1024 is documented, the others are not.
                if (xorb, index) in firsts or chunk.eligible or struct.unpack("<4Q", chunk.digest)[3] % 1024 == 0:
                    self._chunks[xet.text_of(chunk.digest)] = name

    # Downloads.

    def _get_chunk(self, request: Request, digest: str) -> Answer:
        self._allow(request)
        if digest not in self._chunks:
            raise HubError(404, "no such chunk")
        shard = xet.shard_of((self.root / "shards" / self._chunks[digest]).read_bytes())
        return Answer(xet.dedup_shard(shard), headers={"Content-Type": "application/octet-stream"})

    def _get_data(self, request: Request, xorb: str) -> Answer:
        """What the real service signs addresses for: a range of a xorb, without a token."""
        file = self.root / "xorbs" / xorb
        data = file.read_bytes() if file.exists() else b""
        wanted = request.range(len(data))
        if wanted is None or wanted[0] >= wanted[1]:
            raise HubError(416 if data else 404, "no such range")
        first, end = wanted
        headers = {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}", "Content-Type": "application/octet-stream"}
        return Answer(data[first:end], 206, headers)

    def _get_reconstruction(self, request: Request, file: str) -> Answer:
        self._allow(request)
        terms = self._terms(file)
        size = sum(term.size for term in terms)
        first, end = request.range(size) or (0, size)
        if size and first >= size:
            raise HubError(416, "Range Not Satisfiable")
        skip, wanted = self._narrow(terms, first, end)
        fetch: dict[str, list[dict[str, object]]] = {}
        for xorb, start, stop in _merged(wanted):
            offsets = self._layouts[xorb].offsets
            part = {"start": offsets[start], "end": offsets[stop] - 1}
            address = f"{request.base}/{self.name}/data/{xorb}"
            fetch.setdefault(xorb, []).append(
                {"range": {"start": start, "end": stop}, "url": address, "url_range": part}
            )
        listed = [
            {"hash": t.xorb, "unpacked_length": t.size, "range": {"start": t.start, "end": t.end}} for t in wanted
        ]
        return Answer({"offset_into_first_range": skip, "terms": listed, "fetch_info": fetch})

    def _narrow(self, terms: list[Term], first: int, end: int) -> tuple[int, list[Term]]:
        """The terms, cut at chunks, that cover bytes ``first`` to ``end``, and how far into the first chunk that is."""
        skip, at = 0, 0
        kept: list[Term] = []
        for term in terms:
            wanted = []
            for index, size in enumerate(self._layouts[term.xorb].sizes[term.start : term.end], term.start):
                if at < end and at + size > first:
                    wanted.append(index)
                    if not kept and len(wanted) == 1:
                        skip = first - at
                at += size
            if wanted:
                part = Term(term.xorb, 0, wanted[0], wanted[-1] + 1)
                kept.append(part._replace(size=self._length(part)))
        return skip, kept

    def _terms(self, file: str) -> list[Term]:
        if file in self._damage:
            xorb = self._damage[file]
            if xorb is None:
                raise HubError(404, "file not found")
            sizes = self._layouts[xorb].sizes
            return [Term(xorb, sum(sizes), 0, len(sizes))] if sizes else []
        if file not in self._files:
            raise HubError(404, "file not found")
        return self._files[file]

    # For the rest of the double, and for tests behind the client's back.

    def size(self, file: str) -> int | None:
        """The bytes that a file had when it was uploaded; None if it never was."""
        return sum(term.size for term in self._files[file]) if file in self._files else None

    def content(self, file: str) -> bytes:
        """A file's bytes as they are stored now."""
        parts = []
        for term in self._terms(file):
            data = (self.root / "xorbs" / term.xorb).read_bytes()
            offsets = self._layouts[term.xorb].offsets
            parts += [xet.unpack(data[offsets[i] : offsets[i + 1]]) for i in range(term.start, term.end)]
        return b"".join(parts)

    def damage(self, file: str, data: bytes | None) -> None:
        """From now on this hash gives other bytes, or nothing; uploading the same bytes again does not mend it."""
        xorb = None
        if data is not None:
            xorb = hashlib.sha256(file.encode() + data).hexdigest()
            self._keep_xorb(xorb, xet.pack(data))
        with self._lock:
            self._damage[file] = xorb
            write_whole(self.root / "damage.json", json.dumps(self._damage).encode())

    def mend(self) -> None:
        """Forget all damage."""
        with self._lock:
            self._damage = {}
            write_whole(self.root / "damage.json", b"{}")


def _merged(terms: list[Term]) -> list[tuple[str, int, int]]:
    """The ranges of chunks to fetch from each xorb, those that touch or overlap as one."""
    merged: list[tuple[str, int, int]] = []
    for term in sorted(terms, key=lambda t: (t.xorb, t.start)):
        if merged and merged[-1][0] == term.xorb and term.start <= merged[-1][2]:
            merged[-1] = (term.xorb, merged[-1][1], max(merged[-1][2], term.end))
        else:
            merged.append((term.xorb, term.start, term.end))
    return merged
