"""Runs on the machine, with the Python of the settings, before anything of stepctl is there.

Standard library only, and a syntax that older Pythons read, so that they can say which they are. Called as ``python -c
TEXT``; the first line of stdin is what is wanted, as JSON; each line of stdout is an answer, the last one has ``root``
or ``error``.
"""

import errno
import fcntl
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile

TICK_SEC = 5.0
OLDEST = (3, 11)
NEEDED = ("torch", "transformers", "trl", "peft", "datasets", "safetensors", "msgspec", "tokenizers", "jinja2")


ABSENT = (
    "import importlib.util, sys; "
    "print(*sys.version_info[:2], *[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
)


class Stop(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def say(**words: object) -> None:
    data = memoryview(json.dumps(words).encode() + b"\n")
    while data:
        data = data[os.write(1, data) :]


def durable(path: str, data: bytes, mode: int = 0o600) -> None:
    temporary = f"{path}.tmp-{os.urandom(8).hex()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def parents() -> "list[str]":
    """The folders in which this Python has its packages."""
    return [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages") and os.path.isdir(p)]


def identity(want: "dict[str, object]") -> str:
    """What an environment is made of: another wheel, other pins or another Python make another one."""
    parts = [want["wheel"], want["pins"], want["venv"], sys.version, sys.executable, sys.prefix, sys.base_prefix]
    return hashlib.sha256(json.dumps([parts, parents()]).encode()).hexdigest()[:24]


class Setup:
    def __init__(self, want: "dict[str, object]") -> None:
        self.want = want
        self.root = os.path.abspath(os.path.expanduser(str(want["workdir"])))
        self.venv = os.path.abspath(os.path.expanduser(str(want["venv"]))) if want["venv"] else ""
        self.env = os.path.join(self.root, "envs", identity(want))
        self.log = self.env + ".log"
        self.ready = os.path.join(self.env, "ready")

    def folders(self) -> None:
        for path in (self.root, os.path.join(self.root, "envs"), os.path.join(self.root, "runs")):
            os.makedirs(path, 0o700, exist_ok=True)

    def ensure(self) -> None:
        if os.path.exists(self.ready):
            return
        with open(self.env + ".lock", "w") as self.lock:
            self.wait_for(self.lock)
            if os.path.exists(self.ready):
                return
            say(need="wheel")
            wheel = self.read_wheel()
            shutil.rmtree(self.env, ignore_errors=True)
            os.mkdir(self.env, 0o700)
            if self.venv:
                self.use_as_it_is(wheel)
            else:
                self.make(wheel)
            durable(self.ready, json.dumps({"python": self.python(), "made": time.time()}).encode())

    def wait_for(self, lock: io.TextIOWrapper) -> None:
        said = 0.0
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() - said > TICK_SEC:
                said = time.monotonic()
                self.tick("another call is installing the same packages")
            time.sleep(0.2)

    def read_wheel(self) -> bytes:
        data = sys.stdin.buffer.read(int(str(self.want["size"])))
        if len(data) != self.want["size"]:
            raise Stop("cut", "the connection was cut")
        return data

    def python(self) -> str:
        return os.path.join(self.venv or self.env, "bin", "python")

    def tick(self, text: str) -> None:
        """Say that this goes on; the lease of a pod is renewed as long as somebody reads it."""
        say(busy=text)
        if self.want.get("lease"):
            durable(str(self.want["lease"]), f"{time.time()}\n".encode())

    # --- a virtual environment that is used as it is

    def use_as_it_is(self, wheel: bytes) -> None:
        python = self.python()
        if not os.access(python, os.X_OK):
            raise Stop("no_venv", f"{self.venv} has no bin/python: it is no virtual environment")
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            archive.extractall(os.path.join(self.env, "lib"))
        done = subprocess.run(
            [python, "-c", ABSENT, *NEEDED], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        text = done.stdout.decode(errors="replace").strip()
        if done.returncode != 0:
            raise Stop("no_venv", f"{python} does not run: {text[-300:]}")
        major, minor, *absent = text.split()
        if (int(major), int(minor)) < OLDEST:
            raise Stop("old_python", f"{python} is Python {major}.{minor}")
        if absent:
            raise Stop("no_packages", f"{self.venv} does not have {', '.join(absent)}")

    # --- an environment of our own

    def make(self, wheel: bytes) -> None:
        try:
            import venv
        except ImportError:
            raise Stop("no_venv_module", f"{sys.executable} has no module venv") from None
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self.env)
        site = subprocess.check_output([self.python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        folder = site.decode().strip()
        lines = [f"import site; site.addsitedir({path!r})\n" for path in parents()]
        durable(os.path.join(folder, "zz-stepctl-parent.pth"), "".join(lines).encode(), 0o644)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            archive.extractall(folder)
        held = self.held()
        if held is None:
            self.install()
        elif held:
            self.install(held)

    def held(self) -> "dict[str, str] | None":
        """What pip must be told: {} when everything is there already, None when nobody can tell."""
        done = subprocess.run(
            [self.python(), "-c", CHECK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
        )
        if done.returncode != 0:
            return None
        told = json.loads(done.stdout.decode().strip().splitlines()[-1])
        return {"torch": told["torch"]} if told["missing"] else {}

    def install(self, held: "dict[str, str] | None" = None) -> None:
        pip = self.pip()
        constraints = os.path.join(self.env, "constraints.txt")
        own = {name: version for name, version in (held or {}).items() if version}
        lines = [line for line in str(self.want["pins_text"]).splitlines() if line.partition("==")[0] not in own]
        lines += [f"{name}=={version}" for name, version in own.items()]
        durable(constraints, ("\n".join(lines) + "\n").encode())
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "-c", constraints]
        with open(self.log, "wb") as log:
            # It holds the lock as well: nobody begins anew while it writes, even if this process is killed.
            process = subprocess.Popen(
                [*pip, "install", *options, f"stepctl=={self.want['version']}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(self.lock.fileno(),),
            )
            try:
                while self.wait(process):
                    self.tick("installing the packages that training needs (once; this takes minutes)")
            except BaseException:
                process.kill()
                process.wait()
                raise
        if process.returncode != 0:
            raise self.failed()

    def wait(self, process: "subprocess.Popen[bytes]") -> bool:
        try:
            process.wait(TICK_SEC)
        except subprocess.TimeoutExpired:
            return True
        return False

    def pip(self) -> "list[str]":
        if importlib.util.find_spec("ensurepip") is not None:
            done = subprocess.run(
                [self.python(), "-m", "ensurepip", "--default-pip"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode == 0:
                return [self.python(), "-m", "pip"]
        if importlib.util.find_spec("pip") is not None:
            # The parent's, which the environment sees; it installs where its Python runs from.
            return [self.python(), "-m", "pip"]
        raise Stop("no_pip", f"{sys.executable} has neither ensurepip nor pip")

    def failed(self) -> Stop:
        with open(self.log, errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        if any("No space left on device" in line for line in lines):
            return Stop("no_space", "there is no room for the packages")
        wrong = [line for line in lines if line.startswith("ERROR")] or lines
        return Stop("pip", f"pip cannot install the packages: {' / '.join(wrong[-2:])} (its log: {self.log})")

    # --- the run

    def job(self) -> str:
        """The run's folder there, with the way to start its agent in it."""
        folder = os.path.join(self.root, "runs", str(self.want["run"]))
        os.makedirs(folder, 0o700, exist_ok=True)
        lib = os.path.join(self.env, "lib") if self.venv else ""
        # Whatever the login adds to Python's path, this stepctl is the one that runs.
        path = f"PYTHONPATH={quoted(lib)}${{PYTHONPATH:+:$PYTHONPATH}} " if lib else "unset PYTHONPATH; "
        text = f'{path}PYTHONSAFEPATH=1 exec {quoted(self.python())} -m stepctl.agent "$@"\n'
        durable(os.path.join(folder, "agent"), b"# How stepctl starts its agent for this run.\n" + text.encode(), 0o700)
        return folder


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


# Runs in the new environment: which of stepctl's needs are not met by what is there, and which torch is.
CHECK = """
import json
from importlib import metadata
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
missing, seen, torch = [], set(), ""
def visit(text, extras):
    global torch
    need = Requirement(text)
    if need.marker is not None and not any(need.marker.evaluate({"extra": e}) for e in (extras or ("",))):
        return
    try:
        found = metadata.distribution(need.name)
    except metadata.PackageNotFoundError:
        missing.append(need.name)
        return
    if not need.specifier.contains(found.version, prereleases=True):
        missing.append(need.name)
        return
    if need.name == "torch":
        torch = found.version
    key = (need.name.lower(), tuple(sorted(need.extras)))
    if key not in seen:
        seen.add(key)
        for each in found.requires or ():
            visit(each, tuple(need.extras))
visit("stepctl", ())
print(json.dumps({"missing": missing, "torch": torch}))
"""


def main() -> None:
    want = json.loads(sys.stdin.buffer.readline().decode())
    if sys.version_info < OLDEST:
        say(error=f"{sys.executable} is Python {sys.version.split()[0]}", code="old_python")
        return
    os.umask(0o077)
    setup = Setup(want)
    try:
        setup.folders()
        setup.ensure()
        job = setup.job()
    except Stop as error:
        say(error=str(error), code=error.code)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        say(error=str(error), code="no_space" if full else "os_error")
    else:
        say(env=setup.env, root=os.path.realpath(setup.root), job=os.path.realpath(job), python=setup.python())


if __name__ == "__main__":
    main()
