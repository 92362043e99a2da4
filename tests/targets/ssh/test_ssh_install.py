"""What is put on a machine, once, and what is said when it cannot be."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.doubles.sshd import ROOT, Sshd
from tests.targets.ssh.rig import RUN, Rig

from stepctl.targets.base import Freight
from stepctl.targets.ssh import errors, wheel
from stepctl.targets.ssh.connect import connect
from stepctl.targets.ssh.install import Place, Where, prepare

CLIENT_ONLY = {"typer", "rich", "paramiko", "cryptography", "httpx"}
"""What the command line needs, and a job does not."""


def names(requirements: list[str]) -> dict[str, str]:
    return {str(Requirement(each).name).lower().replace("_", "-"): str(Requirement(each)) for each in requirements}


# --- the wheel ------------------------------------------------------------------------------------------------------


def test_the_wheel_is_the_same_each_time_and_holds_what_a_job_needs(tmp_path: Path) -> None:
    made = wheel.build()
    assert made == wheel.build()
    with zipfile.ZipFile(BytesIO(made.data)) as archive:
        inside = archive.namelist()
        archive.extractall(tmp_path)
    assert inside == sorted(inside)
    assert {name.split("/")[1] for name in inside if name.count("/") > 1} == set(wheel.ROOMS)
    assert not [name for name in inside if "__pycache__" in name]
    # Alone, without the rest of stepctl, it has all that an agent and a trainer import.
    code = "import stepctl.agent.serve, stepctl.agent.launch, stepctl.agent.files, stepctl.trainer.run; import stepctl"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(stepctl.__file__)"],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == str(tmp_path / "stepctl/__init__.py"), done.stderr


def test_a_change_of_a_file_makes_another_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    import stepctl

    copy = tmp_path / "stepctl"
    shutil.copytree(Path(stepctl.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = wheel.build().digest
    monkeypatch.setattr(stepctl, "__file__", str(copy / "__init__.py"))
    assert wheel.build().digest == before
    with (copy / "trainer/loop.py").open("a") as file:
        file.write("# another\n")
    assert wheel.build().digest != before


def test_what_the_wheel_needs_is_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = names([*project["dependencies"], *project["optional-dependencies"]["train"]])
    assert names(list(wheel.NEEDS)) == {name: text for name, text in wanted.items() if name not in CLIENT_ONLY}


def test_the_pins_are_those_of_the_lock_and_hold_everything_a_job_needs() -> None:
    lock = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    pinned = [line for line in wheel.pins().splitlines() if not line.startswith("#")]
    assert [line for line in pinned if line not in lock] == []
    held, seen = {line.partition("==")[0] for line in pinned}, set()

    def visit(text: str) -> None:
        need = Requirement(text)
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        if name in seen or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            return
        seen.add(name)
        for each in metadata.requires(name) or ():
            visit(each)

    for each in wheel.NEEDS:
        visit(each)
    assert {name for name in seen if f"{name}==" in "\n".join(lock)} <= held


def test_the_pins_are_in_the_project_s_own_wheel() -> None:
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(str(ROOT))
    files = {each.distribution_path for each in builder.recurse_included_files()}
    assert {"stepctl/targets/ssh/pins.txt", "stepctl/targets/ssh/bootstrap.py"} <= files


def test_an_old_python_can_read_the_bootstrap() -> None:
    ast.parse((ROOT / "src/stepctl/targets/ssh/bootstrap.py").read_text(), feature_version=(3, 6))


# --- on a machine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ready(rig: Rig) -> Callable[..., Place]:
    """Prepare the machine over a new connection."""

    def run(**where: Any) -> Place:
        connection = connect(rig.endpoint)
        try:
            where = {"workdir": str(rig.workdir), "python": sys.executable, **where}
            return prepare(connection, Where(**where), RUN, rig.notices.append)
        finally:
            connection.close()

    return run


def pythons(rig: Rig) -> list[Path]:
    return sorted((rig.workdir / "envs").glob("*/ready"))


@pytest.mark.sshd
def test_an_environment_is_made_once(rig: Rig, ready: Callable[..., Place]) -> None:
    place = ready()
    assert len(rig.notices) == 1
    [mark] = pythons(rig)
    before = {p: p.stat().st_mtime_ns for p in mark.parent.rglob("*") if p.is_file()}
    assert ready() == place
    assert len(rig.notices) == 1
    assert {p: p.stat().st_mtime_ns for p in mark.parent.rglob("*") if p.is_file()} == before
    # It sees what its parent has, and its own stepctl first.
    code = "import torch, msgspec, stepctl; print(torch.__file__); print(stepctl.__file__)"
    done = subprocess.run([place.python, "-c", code], cwd="/", env={}, capture_output=True, text=True, check=False)
    torch, own = done.stdout.split()
    assert mark.parent not in Path(torch).parents
    assert mark.parent in Path(own).parents
    assert not (mark.parent.parent / f"{mark.parent.name}.log").exists()  # pip had nothing to do


@pytest.mark.sshd
def test_two_clients_at_once_make_one_environment(rig: Rig, ready: Callable[..., Place]) -> None:
    found: list[Place] = []
    threads = [threading.Thread(target=lambda: found.append(ready())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(pythons(rig)) == 1
    assert sum("setting up" in notice for notice in rig.notices) == 1


@pytest.mark.sshd
def test_an_environment_that_was_cut_short_is_made_anew(rig: Rig, ready: Callable[..., Place]) -> None:
    ready()
    [mark] = pythons(rig)
    mark.unlink()
    (mark.parent / "bin/python").unlink()
    ready()
    assert (mark.parent / "bin/python").exists()
    assert pythons(rig) == [mark]


@pytest.mark.sshd
def test_another_release_gets_another_environment(
    rig: Rig, ready: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready()
    monkeypatch.setattr(wheel, "pins", lambda: "# others\n")
    ready()
    assert len(pythons(rig)) == 2


@pytest.mark.sshd
def test_a_home_in_the_path(rig: Rig, ready: Callable[..., Place]) -> None:
    place = ready(workdir="~/some where", venv=str(rig.venv))
    assert place.root == str(rig.sshd.home / "some where")
    assert place.job == f"{place.root}/runs/{RUN}"
    assert (Path(place.root) / "runs").stat().st_mode & 0o77 == 0


def python(folder: Path, text: str) -> str:
    """A Python that is a script."""
    path = folder / "python-of-the-test"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.sshd
def test_python_is_missing(ready: Callable[..., Place]) -> None:
    with pytest.raises(errors.BadSetup, match=r"python3\.99 does not run") as caught:
        ready(python="python3.99")
    assert caught.value.code == "no_python"
    assert "not found" in caught.value.message


@pytest.mark.sshd
def test_python_is_too_old(ready: Callable[..., Place], tmp_path: Path) -> None:
    program = 'import sys; sys.version_info = (3, 9); sys.version = "3.9.2 x"; exec(sys.argv[1])'
    (tmp_path / "old.py").write_text(program)
    old = f'exec {sys.executable} {tmp_path}/old.py "$2"'
    with pytest.raises(errors.BadSetup, match=r"is Python 3\.9\.2 and stepctl needs 3\.11 or newer"):
        ready(python=python(tmp_path, old))


def hiding(folder: Path, *modules: str) -> str:
    """A Python that lacks some modules of the standard library."""
    program = (
        "import importlib.util, sys\n"
        f"hidden, real = {modules!r}, importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in hidden else real(name, *rest)\n"
        "sys.modules.update(dict.fromkeys(hidden))\n"
        "exec(sys.argv[1])\n"
    )
    (folder / "hiding.py").write_text(program)
    return python(folder, f'exec {sys.executable} {folder}/hiding.py "$2"')


@pytest.mark.sshd
@pytest.mark.parametrize(
    ("modules", "code"), [(("venv",), "no_venv_module"), (("ensurepip", "pip"), "no_pip")], ids=lambda value: str(value)
)
def test_parts_of_python_are_missing(
    ready: Callable[..., Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], code: str
) -> None:
    monkeypatch.setattr(wheel, "NEEDS", (*wheel.NEEDS, "no-such-package-of-stepctl"))
    with pytest.raises(errors.BadSetup, match="cannot be set up") as caught:
        ready(python=hiding(tmp_path, *modules))
    assert caught.value.code == code
    assert "python3-venv" in caught.value.next


@pytest.mark.sshd
def test_pip_fails(rig: Rig, ready: Callable[..., Place], monkeypatch: pytest.MonkeyPatch) -> None:
    (rig.sshd.home / ".config/pip").mkdir(parents=True, exist_ok=True)
    config = rig.sshd.home / ".config/pip/pip.conf"
    config.write_text("[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\n")
    monkeypatch.setattr(wheel, "NEEDS", (*wheel.NEEDS, "no-such-package-of-stepctl"))
    try:
        with pytest.raises(errors.BadSetup, match="no-such-package-of-stepctl") as caught:
            ready()
    finally:
        config.unlink()
    log = caught.value.message.partition("its log: ")[2].rstrip(")")
    assert "no-such-package-of-stepctl" in Path(log).read_text()
    assert pythons(rig) == []


@pytest.mark.sshd
def test_pip_installs_what_is_missing(
    rig: Rig, ready: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a folder of wheels, at the version that is pinned, and not what its parent has."""
    for version in ("1.0", "2.0", "3.0"):
        with zipfile.ZipFile(tmp_path / f"stepctl_absent-{version}-py3-none-any.whl", "w") as made:
            info = f"stepctl_absent-{version}.dist-info"
            made.writestr("stepctl_absent.py", f"version = {version!r}\n")
            made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: stepctl-absent\nVersion: {version}\n")
            made.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            made.writestr(
                f"{info}/RECORD", f"stepctl_absent.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
            )
    (rig.sshd.home / ".config/pip").mkdir(parents=True, exist_ok=True)
    config = rig.sshd.home / ".config/pip/pip.conf"
    config.write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}\n")
    monkeypatch.setattr(wheel, "NEEDS", (*wheel.NEEDS, "stepctl-absent>=1"))
    monkeypatch.setattr(wheel, "pins", lambda: "torch==0.1\nstepctl-absent==2.0\n")
    try:
        place = ready()
    finally:
        config.unlink()
    code = "import stepctl_absent, torch; print(stepctl_absent.version)"
    done = subprocess.run([place.python, "-c", code], cwd="/", env={}, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "2.0", done.stderr


@pytest.mark.sshd
def test_a_virtual_environment_that_is_none(ready: Callable[..., Place], tmp_path: Path) -> None:
    with pytest.raises(errors.BadSetup, match="no virtual environment") as caught:
        ready(venv=str(tmp_path))
    assert caught.value.code == "no_venv"


@pytest.mark.sshd
def test_a_virtual_environment_without_the_packages(ready: Callable[..., Place], tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    with pytest.raises(errors.BadSetup, match="does not have torch, transformers, trl") as caught:
        ready(venv=str(tmp_path / "bare"))
    assert caught.value.code == "no_packages"


@pytest.mark.sshd
@pytest.mark.root
def test_there_is_no_room(ready: Callable[..., Place], tmp_path: Path) -> None:
    if os.getuid() != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("needs root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(small)], check=True)
    try:
        with pytest.raises(errors.BadSetup, match="No space left") as caught:
            ready(workdir=str(small / "w"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert caught.value.code == "no_space"


@pytest.mark.sshd
def test_a_folder_that_may_not_be_written(rig: Rig, ready: Callable[..., Place], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.BadSetup) as caught:
        ready(workdir=str(tmp_path / "file/w"))
    assert caught.value.code == "os_error"


@pytest.mark.sshd
def test_a_client_that_is_killed_while_pip_runs(
    rig: Rig, ready: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip ends with it, and the next client makes the environment."""
    good = replace(wheel.build(), digest="the same")
    monkeypatch.setattr(wheel, "NEEDS", (*wheel.NEEDS, "no-such-package-of-stepctl"))
    bad = replace(wheel.build(), digest="the same")
    (rig.sshd.home / ".config/pip").mkdir(parents=True, exist_ok=True)
    config = rig.sshd.home / ".config/pip/pip.conf"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        config.write_text(f"[global]\nindex-url = http://127.0.0.1:{mute.getsockname()[1]}/simple\ntimeout = 99\n")
        monkeypatch.setattr(wheel, "build", lambda: bad)
        pid = os.fork()
        if pid == 0:
            try:
                ready()
            finally:
                os._exit(1)
        mute.accept()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        config.unlink()
        assert pythons(rig) == []
        monkeypatch.setattr(wheel, "build", lambda: good)
        place = ready()
    assert pythons(rig) == [Path(place.python).parents[1] / "ready"]


@pytest.mark.sshd
@pytest.mark.parametrize("own", [True, False])
def test_another_stepctl_on_the_login_s_path_is_not_the_one_that_runs(tmp_path: Path, own: bool) -> None:
    other = tmp_path / "other/stepctl"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the wrong one')")
    with Sshd(tmp_path / "machine", bashrc=f"export PYTHONPATH={other.parent}") as sshd:
        rig = Rig(tmp_path, sshd)
        where = {"python": sys.executable} if own else {"venv": str(rig.venv)}
        machine = rig.machine(where=Where(workdir=str(rig.workdir), **where))
        machine.prepare(Freight())
        assert machine.find() is None
        machine.close()


@pytest.mark.sshd
def test_a_run_of_a_release_that_talks_otherwise(rig: Rig) -> None:
    machine = rig.machine()
    machine.prepare(Freight())
    machine.close()
    script = rig.there.path / "agent"
    script.write_text('read x; echo \'{"op": "hello", "protocol": 9, "release": "9.0"}\'; read x')
    with pytest.raises(errors.BadSetup, match=r"by stepctl 9\.0"):
        rig.machine().sync()
