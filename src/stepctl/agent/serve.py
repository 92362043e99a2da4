"""Answers to a client, for as long as its channel is open. Nothing is remembered from one request to the next."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepctl import __version__
from stepctl.agent import jobs
from stepctl.agent.launch import elsewhere
from stepctl.agent.pipes import Input, writer
from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import PROTOCOL, Ask, Told, line


def serve(workdir: Path) -> int:
    """Answer each line of stdin with one on stdout, until stdin ends."""
    stdin, say = Input(), writer()
    try:
        while raw := stdin.line():
            say(line(answer(workdir, raw)))
    except BrokenPipeError:
        return 1
    return 0


def answer(workdir: Path, raw: bytes) -> Told:
    """One request's answer; what goes wrong is in it."""
    op = ""
    try:
        ask = msgspec.json.decode(raw, type=Ask)
        op = ask.op
        return _done(workdir, ask)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return Told(op=op, error=str(error))


def _done(workdir: Path, ask: Ask) -> Told:
    told = Told(op=ask.op)
    # Whatever the client asks, it is there.
    jobs.renew(ask.lease)
    if ask.op == "hello":
        told.protocol, told.release = PROTOCOL, __version__
        if ask.job:
            told.error = elsewhere(JobDir(Path(ask.job)))
    elif ask.op in ("poll", "find"):
        told.job = jobs.look(ask)
    elif ask.op == "request":
        jobs.request(ask)
    elif ask.op == "signal":
        jobs.send_signal(ask)
    elif ask.op == "have":
        told.yes = jobs.have(workdir, ask)
    elif ask.op == "remove":
        jobs.remove(workdir, ask)
    else:
        told.error = f"unknown request {ask.op!r}"
    return told
