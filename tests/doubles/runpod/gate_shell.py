# Root's login shell in a pod whose SSH commands are calls (see gate.py, which puts GATE and POD in front of this).
# Everything else is as with any shell: the command runs in bash, and its bytes pass through unchanged.

import collections
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


def tell(call, what, when):
    with socket.create_connection(GATE) as gate:  # noqa: F821
        gate.sendall(json.dumps({"pod": POD, "call": call, "what": what, "when": when}).encode() + b"\n")  # noqa: F821
        return gate.makefile().readline() == "go\n"


class Shell:
    def __init__(self, command):
        self.kind = next((kind for pattern, kind in KINDS if re.search(pattern, command)), "shell")
        self.owed = collections.deque()
        self.rest = b""
        self.owed.append(self.begin(self.kind))
        self.child = subprocess.Popen(["/bin/bash", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def begin(self, what):
        """A call comes in; when it is lost on the way this is the end."""
        call = os.urandom(8).hex()
        if not tell(call, what, "before"):
            self.end()
        return call, what

    def answered(self):
        """The oldest call without an answer is about to get it."""
        if self.owed:
            self.let_out(self.owed.popleft())

    def let_out(self, call):
        if not tell(*call, "after"):
            self.end()

    def end(self, code=255):
        if "child" in vars(self):
            self.child.stdin.close()
            self.child.stdout.close()
        os._exit(code)

    # --- what the client sends

    def listen(self):
        to, first = self.child.stdin, True
        try:
            while data := os.read(0, 1 << 16):
                if self.kind == ASKS:
                    data = self.asks(data)
                elif self.kind in SECOND and first:
                    line, newline, rest = data.partition(b"\n")
                    self.put(to, line + newline)
                    if newline:
                        first = None
                    data = rest
                if self.kind in SECOND and first is None and data:
                    self.owed.append(self.begin(SECOND[self.kind]))
                    first = False
                self.put(to, data)
        except OSError:
            pass
        try:
            to.close()
        except OSError:
            pass

    def asks(self, data):
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.owed.append(self.begin("ask " + json.loads(line).get("op", "?")))
            self.put(self.child.stdin, line + b"\n")
        return b""

    def put(self, to, data):
        if data:
            to.write(data)
            to.flush()

    # --- what the command answers

    def speak(self):
        out = self.child.stdout.fileno()
        data = self.until_marked(out)
        if self.kind == "shell":
            while more := os.read(out, 1 << 16):
                data += more
            self.child.wait()
            self.answered()
        elif self.kind == "pack":
            data += os.read(out, 1 << 16)
            self.answered()
        else:
            return self.lines(out, data)
        self.say(data)
        while data := os.read(out, 1 << 16):
            self.say(data)

    def until_marked(self, out):
        data = b""
        while MARK not in data:
            more = os.read(out, 1 << 16)
            if not more:
                return data
            data += more
        noise, mark, rest = data.partition(MARK)
        self.say(noise + mark)
        return rest

    def lines(self, out, data):
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
            more = os.read(out, 1 << 20)
            if not more:
                self.say(data)
                return
            data += more

    def say(self, data):
        while data:
            data = data[os.write(1, data) :]


def main():
    if sys.argv[1:2] != ["-c"]:
        os.execv("/bin/bash", ["-bash"])
    shell = Shell(sys.argv[2])
    threading.Thread(target=shell.listen, daemon=True).start()
    try:
        shell.speak()
    except OSError:
        pass  # the client is gone
    shell.child.stdout.close()
    os._exit(shell.child.wait() & 255)


main()
