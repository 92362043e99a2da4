"""Run the double: ``python -m tests.doubles.hub --root DIR [--port 0]``. It prints its address on one line."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from .server import Options, serve
from .state import Who


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="everything that is stored; a restart finds it again")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", action="append", required=True, metavar="TOKEN=USER:ROLE", help="role read or write")
    parser.add_argument("--page", type=int, default=1000, help="entries on a page of a bucket's tree")
    parser.add_argument("--ttl", type=float, default=3600, help="seconds that a xet token is good for")
    parser.add_argument("--while-stdin", action="store_true", help="end when stdin is closed")
    args = parser.parse_args()
    tokens = {token: Who(*who.split(":")) for token, who in (text.split("=") for text in args.token)}
    server = serve(Options(args.root.resolve(), args.port, tokens, args.page, args.ttl))
    if args.while_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


main()
