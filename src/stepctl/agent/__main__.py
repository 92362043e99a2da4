"""``python -m stepctl.agent serve WORKDIR | launch | unpack | pack ROOT PATH...``: called by a client over SSH."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    # A core dump could hold examples.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The client may go away in the middle of a word.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    umask = os.umask(0o077)
    verb, rest = (arguments or [""])[0], arguments[1:]
    if verb == "serve" and len(rest) == 1:
        from stepctl.agent.serve import serve

        return serve(Path(rest[0]))
    if verb == "launch" and not rest:
        from stepctl.agent.launch import launch

        return launch(umask)
    if verb == "unpack" and len(rest) == 1:
        from stepctl.agent.files import receive

        return receive(Path(rest[0]))
    if verb == "pack" and len(rest) >= 2:
        from stepctl.agent.files import send

        return send(Path(rest[0]), rest[1:])
    print("usage: python -m stepctl.agent serve WORKDIR | launch | unpack WORKDIR | pack ROOT PATH...", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
