"""Run the double: ``python -m tests.doubles.hub --root DIR [--port 0]``. It prints its address on one line."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from .client import TOKENS
from .server import Options, serve
from .state import Who


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="everything that is stored; a restart finds it again")
    parser.add_argument("--port", type=int, default=0)
    more = "a token besides " + ", ".join(f"{token}={who}" for token, who in TOKENS.items())
    parser.add_argument("--token", action="append", default=[], metavar="TOKEN=USER:ROLE", help=more)
    parser.add_argument("--while-stdin", action="store_true", help="end when stdin is closed")
    args = parser.parse_args()
    given = {**TOKENS, **dict(text.split("=") for text in args.token)}
    tokens = {token: Who(*who.split(":")) for token, who in given.items()}
    server = serve(Options(args.root.resolve(), args.port, tokens))
    if args.while_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


main()
