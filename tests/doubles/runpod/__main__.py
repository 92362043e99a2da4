"""Run the sandbox: ``python -m tests.doubles.runpod --root DIR --pods records``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from .api import Api
from .base import Clock, Limits
from .catalog import Catalog
from .client import KEY
from .cloud import Cloud, Records
from .contract import Contract, find_document
from .control import Control, serve
from .faults import Faults
from .journal import Journal
from .server import Desk, Door


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.runpod", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="keeps the journal and what volumes hold")
    parser.add_argument("--pods", choices=("records",), default="records", help="what a pod is")
    parser.add_argument("--port", type=int, default=0, help="port of the API")
    parser.add_argument("--control-port", type=int, default=0, help="port of the control address")
    parser.add_argument("--show", action="append", type=Path, default=[], help="host folder that pods see, read-only")
    parser.add_argument("--while-stdin", action="store_true", help="end when stdin is closed")
    parser.add_argument("--json", action="store_true", help="say the addresses as one line of JSON")
    args = parser.parse_args()
    args.root.mkdir(parents=True, exist_ok=True)

    clock, faults, catalog = Clock(), Faults(), Catalog()
    journal = Journal(args.root / "journal.jsonl", echo=not args.json)
    containers: Any = Records()
    cloud = Cloud(clock, journal, catalog, containers)
    api = Api(cloud, catalog, Limits(clock), KEY)
    document = find_document()
    door = Door(Desk(api, faults, journal, Contract(document), clock), "127.0.0.1", args.port)
    about = {"pods": args.pods, "document": str(document or "")}
    control = serve(Control(cloud, api, faults, door, containers, about), args.control_port)
    url = f"http://{door.host}:{door.port}/v2"
    print(json.dumps({"url": url, "control": f"http://127.0.0.1:{control.server_address[1]}"}), flush=True)
    _wait(args.while_stdin)
    containers.close()
    os._exit(0)


def _wait(while_stdin: bool) -> None:
    """Until a signal, or the end of stdin."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    if while_stdin:
        threading.Thread(target=lambda: (sys.stdin.buffer.read(), ended.set()), daemon=True).start()
    ended.wait()


main()
