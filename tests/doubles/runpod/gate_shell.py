# Root's login shell in a pod whose SSH commands are calls (see gate.py, which puts GATE and POD in front of this).
# Everything else is as with any shell: the command runs in bash, and its bytes pass through unchanged.

import collections
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading

MARK = b"\nstepctl-says\n"
KINDS = (
    (r"/agent\S* unpack ", "unpack"),
    (r"/agent\S* pack ", "pack"),
    (r"/agent\S* launch", "launch"),
    (r"/agent\S* serve ", "attach"),
    (r"bootstrap", "setup"),
)
ASKS, OVER = "attach", b'"exit_code"'
SECOND = {"launch": "payload", "setup": "wheel"}
"""What follows the first line of these commands' input is a call of its own."""

Call = tuple[str, str]


def tell(call: Call, when: str) -> bool:
    with socket.create_connection(GATE) as gate:  # noqa: F821
        told = {"pod": POD, "call": call[0], "what": call[1], "when": when}  # noqa: F821
        gate.sendall(json.dumps(told).encode() + b"\n")
        return gate.makefile().readline() == "go\n"


class Shell:
    def __init__(self, command: str) -> None:
        self.kind = next((kind for pattern, kind in KINDS if re.search(pattern, command)), "shell")
        self.owed: collections.deque[Call] = collections.deque()
        self.rest = b""
        self.owed.append(self.begin(self.kind))
        self.child = subprocess.Popen(["/bin/bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.child.stdin and self.child.stdout
        self.to, self.out = self.child.stdin, self.child.stdout

    def begin(self, what: str) -> Call:
        """A call comes in; when it is lost on the way this is the end."""
        call = os.urandom(8).hex(), what
        if not tell(call, "before"):
            self.end()
        return call

    def answered(self) -> None:
        """The oldest call without an answer is about to get it."""
        if self.owed:
            self.let_out(self.owed.popleft())

    def let_out(self, call: Call) -> None:
        if not tell(call, "after"):
            self.end()

    def end(self) -> None:
        """The connection breaks: the command sees the end of its input, and nobody reads its output."""
        os._exit(255)

    # --- what the client sends

    def listen(self) -> None:
        head = self.kind in SECOND
        with contextlib.suppress(OSError):
            while data := os.read(0, 1 << 16):
                if self.kind == ASKS:
                    self.ask(data)
                    continue
                if head:
                    line, newline, data = data.partition(b"\n")
                    self.put(line + newline)
                    head = not newline
                if data and not head and self.kind in SECOND:
                    self.owed.append(self.begin(SECOND.pop(self.kind)))
                self.put(data)
        with contextlib.suppress(OSError):
            self.to.close()

    def ask(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.owed.append(self.begin("ask " + json.loads(line).get("op", "?")))
            self.put(line + b"\n")

    def put(self, data: bytes) -> None:
        self.to.write(data)
        self.to.flush()

    # --- what the command answers

    def speak(self) -> None:
        data = self.until_marked()
        if self.kind == "shell":
            while more := self.read():
                data += more
            self.child.wait()
            self.answered()
        elif self.kind == "pack":
            data += self.read()
            self.answered()
        else:
            return self.lines(data)
        self.say(data)
        while data := self.read():
            self.say(data)

    def read(self) -> bytes:
        return os.read(self.out.fileno(), 1 << 16)

    def until_marked(self) -> bytes:
        data = b""
        while MARK not in data:
            more = self.read()
            if not more:
                return data
            data += more
        noise, mark, rest = data.partition(MARK)
        self.say(noise + mark)
        return rest

    def lines(self, data: bytes) -> None:
        while True:
            line, newline, data = data.partition(b"\n")
            if newline:
                if OVER in line and self.kind == ASKS:
                    self.let_out(self.begin("over"))
                if b'"busy"' not in line:
                    self.answered()
                self.say(line + newline)
                continue
            data = line
            more = self.read()
            if not more:
                return self.say(data)
            data += more

    def say(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]


def main() -> None:
    if sys.argv[1:2] != ["-c"]:
        os.execv("/bin/bash", ["-bash"])
    shell = Shell(sys.argv[2])
    threading.Thread(target=shell.listen, daemon=True).start()
    with contextlib.suppress(OSError):  # the client is gone
        shell.speak()
    shell.out.close()
    os._exit(shell.child.wait() & 255)


main()
