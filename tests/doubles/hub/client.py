"""Start the emulated Hub from a test, and look and reach behind its client's back."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .faults import Fault, Logged

ROOT = Path(__file__).resolve().parents[3]
TOKENS = {"hf_write": "u:write", "hf_read": "u:read", "hf_other": "v:write"}


@dataclass(frozen=True)
class Stored:
    """A bucket's file as it is listed; times as the Hub writes them."""

    path: str
    size: int
    hash: str
    mtime: str
    uploaded: str


class Hub:
    """The emulated Hub, running between ``with`` and its end. Buckets of user ``u`` are named ``u/...``.

    write, read: tokens of user ``u`` for both and for reading only.
    other: a token of user ``v``, who sees nothing private of ``u``'s and writes nothing there.
    wrong: a token that nobody has.
    """

    write, read, other = TOKENS
    wrong = "hf_wrong"

    def __init__(self, root: Path, *, tokens: dict[str, str] | None = None) -> None:
        """``tokens``: further ones, each to its ``user:role``."""
        self._tokens = tokens or {}
        self._root, self._port = root, 0
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Hub:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start on the same state, and the same port if it ran before."""
        command = [sys.executable, "-m", "tests.doubles.hub", f"--root={self._root}", f"--port={self._port}"]
        command += ["--while-stdin"]
        command += [f"--token={token}={who}" for token, who in self._tokens.items()]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)
        assert self._process.stdout
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the emulated Hub did not start"
        self._port = int(self.url.rsplit(":", 1)[1])

    def stop(self) -> None:
        """Kill it, as a crash would: what it had answered is on disk."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def env(self, home: Path, token: str = write) -> dict[str, str]:
        """What a client process needs in its environment; ``home`` keeps its caches and must be its own."""
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "0"}
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": token, "HF_HOME": str(home), **quiet}

    # What goes wrong.

    def faults(self, *faults: Fault) -> None:
        """Put these in force instead of those before; nothing goes wrong without arguments."""
        self._ask("faults", faults=[asdict(fault) for fault in faults])

    def release(self) -> None:
        """Let the requests go on that hang."""
        self._ask("release")

    def wait_held(self, count: int = 1, seconds: float = 30) -> None:
        """Wait until so many requests hang."""
        until = time.monotonic() + seconds
        while self._ask("held") < count:
            assert time.monotonic() < until, f"no {count} requests hang after {seconds} s: {self.requests()}"
            time.sleep(0.01)

    def expire_tokens(self) -> None:
        """Refuse the xet tokens given so far, whatever time they name."""
        self._ask("expire")

    def clock(self, at: datetime | None = None, step_ms: int = 1) -> None:
        """Set the time of the next batch, the later ones ``step_ms`` apart: with 0 all tie. None: the real time."""
        self._ask("clock", at=None if at is None else int(at.timestamp() * 1000), step=step_ms)

    def settings(self, *, page: int = 1000, ttl: float = 3600.0) -> None:
        """``page``: entries on a page of a bucket's listing; ``ttl``: seconds that a xet token is good for."""
        self._ask("settings", page=page, ttl=ttl)

    # What was asked.

    def requests(self, match: str = "") -> list[Logged]:
        """The requests so far whose ``METHOD /path?query`` matches."""
        log = [Logged(**entry) for entry in self._ask("requests")]
        return [e for e in log if re.search(match, f"{e.method} {e.path}{'?' + e.query if e.query else ''}")]

    def clear_requests(self) -> None:
        self._ask("clear")

    def up(self, match: str = "") -> int:
        """Bytes in the bodies of those requests."""
        return sum(entry.bytes_in for entry in self.requests(match))

    def down(self, match: str = "") -> int:
        """Bytes in the bodies of the answers to those requests."""
        return sum(entry.bytes_out for entry in self.requests(match))

    # What is stored.

    def stored(self, bucket: str) -> dict[str, Stored]:
        """A bucket's files by path."""
        listed = self._ask("stored", bucket=bucket)
        names = ("path", "size", "xetHash", "mtime", "uploadedAt")
        return {file["path"]: Stored(*(file[name] for name in names)) for file in listed}

    def content(self, bucket: str, path: str) -> bytes:
        """The bytes that are stored for a path now."""
        return base64.b64decode(self._ask("content", bucket=bucket, path=path))

    def damage(self, bucket: str, path: str, change: Callable[[bytes], bytes]) -> None:
        """Change stored bytes; the listing stays as it was. Files of the same content share the bytes and the damage,
        and uploading that content again does not mend it."""
        data = base64.b64encode(change(self.content(bucket, path))).decode()
        self._ask("damage", bucket=bucket, path=path, data=data)

    def flip(self, bucket: str, path: str, at: int = 0) -> None:
        """Turn over one stored byte; see ``damage``."""
        size = len(self.content(bucket, path))
        self.damage(bucket, path, lambda data: data[: at % size] + bytes([data[at] ^ 255]) + data[at % size + 1 :])

    def truncate(self, bucket: str, path: str, size: int) -> None:
        """Keep only the first bytes; see ``damage``."""
        self.damage(bucket, path, lambda data: data[:size])

    def lose(self, bucket: str, path: str) -> None:
        """Lose the stored bytes; the file is listed as before. See ``damage``."""
        self._ask("damage", bucket=bucket, path=path, data=None)

    def mend(self) -> None:
        """Forget all damage: every content is again what was uploaded."""
        self._ask("mend")

    def remove(self, bucket: str, path: str) -> None:
        """Delete a file, as another client of the bucket could."""
        self._ask("remove", id_=bucket, path=path)

    def date(self, bucket: str, path: str, uploaded: datetime) -> None:
        """Change when a file was uploaded."""
        self._ask("date", id_=bucket, path=path, uploaded=int(uploaded.timestamp() * 1000))

    def add_model(self, id_: str, folder: Path, *, private: bool = False) -> str:
        """Copy a folder in as the newest commit of the model repository's ``main``; returns the commit."""
        commit: str = self._ask("add_model", id_=id_, folder=str(folder), private=private)
        return commit

    def _ask(self, verb: str, **args: Any) -> Any:
        request = urllib.request.Request(f"{self.url}/_hub/{verb}", json.dumps(args).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{verb}: {json.load(error)['error']}") from None


@contextmanager
def fresh_client(home: Path) -> Iterator[None]:
    """Let the client library in this very process begin anew, with its caches under ``home``.

    Only what it reads when it is used is covered: give ``HfApi`` its endpoint and token, downloads their ``cache_dir``.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils._xet import abort_xet_session

    kept, offline = dict(os.environ), constants.HF_HUB_OFFLINE
    quick = {"HF_XET_CLIENT_RETRY_BASE_DELAY": "20ms", "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ.update({"HF_HOME": str(home), "HF_XET_CACHE": str(home / "xet"), **quick})
    os.environ.pop("HF_HUB_OFFLINE", None)
    constants.HF_HUB_OFFLINE = False
    abort_xet_session()
    try:
        yield
    finally:
        abort_xet_session()
        constants.HF_HUB_OFFLINE = offline
        os.environ.clear()
        os.environ.update(kept)
