"""Run the sandbox: ``python -m tests.doubles.runpod``. Ctrl-C ends it, and every pod with it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

from . import levels, screen
from .api import Api
from .base import Clock, Limits
from .catalog import Catalog
from .client import KEY
from .cloud import Cloud, Records
from .contract import Contract, find_document
from .control import Control, serve
from .faults import Faults
from .gate import Gate
from .journal import Journal
from .machines import Machines, own_mounts
from .network import Block
from .server import Desk, Door

TICK = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.runpod", description=__doc__)
    parser.add_argument("--root", type=Path, help="keeps the journal and what volumes hold; else a temporary folder")
    parser.add_argument("--pods", choices=("netns", "records"), default="netns", help="what a pod is")
    parser.add_argument("--port", type=int, default=0, help="port of the API")
    parser.add_argument("--control-port", type=int, default=0, help="port of the control address")
    parser.add_argument("--show", action="append", type=Path, default=[], help="host folder that pods see, read-only")
    parser.add_argument("--show-python", action="store_true", help="let pods see this Python and its packages")
    parser.add_argument("--quirk", action="append", default=[], metavar="NAME=JSON", help="how pods behave")
    parser.add_argument("--while-stdin", action="store_true", help="end when stdin is closed")
    parser.add_argument("--json", action="store_true", help="print the addresses as JSON, and no journal")
    parser.add_argument("--env", type=Path, help="write a file to source: the addresses, and settings of a target")
    parser.add_argument("--model", type=Path, help="folder of a base model that the file to source names")
    args = parser.parse_args()
    run(args)


def run(args: argparse.Namespace) -> None:
    """Serve until told to end."""
    root = Path(args.root or tempfile.mkdtemp(prefix="stepctl-sandbox-"))
    root.mkdir(parents=True, exist_ok=True)
    machines = _machines(args, root) if args.pods == "netns" else None  # before any thread
    ended = _end_on_signals(args.while_stdin)

    clock, faults, catalog = Clock(), Faults(), Catalog()
    cloud = Cloud(clock, Journal(root / "journal.jsonl", echo=not args.json), catalog, machines or Records())
    api = Api(cloud, catalog, Limits(clock), KEY)
    document = find_document()
    desk = Desk(api, faults, cloud.journal, Contract(document), clock)
    door = Door(desk, machines.block.address if machines else "127.0.0.1", args.port)
    about = {"pods": args.pods, "document": str(document or ""), "root": str(root)}
    control = Control(cloud, api, faults, door, machines.inside if machines else None, about)
    control.ask("quirks", {name: json.loads(value) for name, value in (text.split("=", 1) for text in args.quirk)})
    if machines:
        machines.exited, machines.api_port = cloud.exited, door.port
        machines.pods = lambda: [*cloud.pods.values(), *cloud.gone.values()]
        machines.gate = Gate(machines.block.address, faults, cloud.journal)

    address = f"http://127.0.0.1:{serve(control, args.control_port).server_address[1]}"
    addresses = {"url": f"http://{door.host}:{door.port}/v2", "control": address}
    if args.env:
        screen.write_env(args.env, addresses, KEY, args.model)
    print(json.dumps(addresses) if args.json else screen.greeting(addresses, args.env, args.pods), flush=True)
    while not ended.wait(TICK if machines else 3600):
        cloud.tick()
    if machines:
        machines.close()
    if args.env:
        args.env.unlink(missing_ok=True)
    os._exit(0)


def _machines(args: argparse.Namespace, root: Path) -> Machines:
    """Where real pods run.

    Raises:
        SystemExit: nowhere, and why.
    """
    why = levels.missing()
    if why:
        raise SystemExit(f"sandbox: {why}; --pods records needs nothing")
    block = Block([root / "disks" if args.root else root])
    own_mounts()
    show = [*args.show, *(screen.folders_of_python() if args.show_python else [])]
    return Machines(root, block, show)


def _end_on_signals(while_stdin: bool) -> threading.Event:
    """Set by a signal, or by the end of stdin."""
    ended = threading.Event()

    def read() -> None:
        sys.stdin.buffer.read()
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    if while_stdin:
        threading.Thread(target=read, daemon=True).start()
    return ended


main()
