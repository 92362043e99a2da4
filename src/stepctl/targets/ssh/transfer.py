"""Files to a machine and from it: one stream over one command, however many files, with a digest at its end."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepctl.base.archive import ArchiveError, File, pack, unpack
from stepctl.base.errors import StepctlError
from stepctl.base.files import TEMPORARY, make_dirs, sha256_file
from stepctl.targets.ssh import errors
from stepctl.targets.ssh.channel import Ended, Stream
from stepctl.targets.ssh.connect import Connection

DURABLE_SEC = 600.0
"""What writing everything to a slow disk may take at the end."""

MANIFEST = "manifest.json"
Report = Callable[[int, int], None]


class TransferFailed(StepctlError):
    """Files did not get across whole; what was there before is as it was."""

    code = "transfer_failed"


def upload(
    connection: Connection, unpacker: str, dest: str, files: Sequence[File], *, digest: str, keep: bool, report: Report
) -> None:
    """Bring files into the folder ``dest`` of the machine, whole or not at all.

    Args:
        unpacker: the shell command of the agent's ``unpack``.
        digest: noted there as what the folder was made from.
        keep: leave a folder alone that is there already.

    Raises:
        LinkLost: the connection broke.
        TransferFailed: no room there, a file here changed, or what arrived is something else.
    """
    stream = Stream(connection, unpacker)
    try:
        stream.write(json.dumps({"dest": dest, "digest": digest, "keep": keep}).encode() + b"\n")
        sent = pack(files, stream.write, report)
    except Ended:
        sent = ""
    except (ArchiveError, OSError) as error:
        stream.close()
        raise TransferFailed(f"files for {connection.where} cannot be read: {error}", next="call again") from error
    stream.shut()
    try:
        told: dict[str, Any] = json.loads(stream.line(DURABLE_SEC))
    except (Ended, ValueError):
        told = {"error": stream.words() or "the agent ended without an answer"}
    stream.close()
    if "error" in told:
        raise TransferFailed(
            f"{connection.where} cannot take the files into {dest}: {told['error']}",
            safe="nothing was trained",
            next="make room there, or choose another workdir, then call again",
        )
    if told.get("sha256") != sent:
        raise TransferFailed(f"what arrived in {dest} on {connection.where} is not what was sent", next="call again")


def download(connection: Connection, packer: str, folder: Path, report: Report) -> None:
    """Bring what the agent packs into ``folder``, a new one.

    Raises:
        LinkLost: the connection broke.
        TransferFailed: it cannot be packed there, or is not whole.
        OSError: no room here.
    """
    stream = Stream(connection, packer)
    try:
        unpack(stream, folder, report)
    except Ended:
        raise TransferFailed(
            f"{connection.where} cannot send its files: {stream.words() or 'the agent ended'}"
        ) from None
    except ArchiveError as error:
        if not connection.alive:
            raise errors.lost(connection.where) from error
        raise TransferFailed(
            f"the files of {connection.where} did not arrive whole: {error}", next="call again"
        ) from error
    finally:
        stream.close()


def fetch_checkpoint(connection: Connection, packer: str, target: Path, report: Report) -> Path:
    """Bring a checkpoint to ``target``: every file is compared with its manifest before the name appears.

    Raises:
        LinkLost, TransferFailed, OSError: as :func:`download`; nothing is left.
    """
    make_dirs(target.parent)
    temporary = target.parent / f"{TEMPORARY}{target.name}-{os.urandom(4).hex()}"
    temporary.mkdir()
    try:
        download(connection, packer, temporary, report)
        check_against_manifest(temporary, target.name)
        shutil.rmtree(target, ignore_errors=True)  # one that has no manifest
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def check_against_manifest(folder: Path, name: str) -> None:
    """Compare a folder with the sizes and digests that its manifest has: these files, and no others.

    Raises:
        TransferFailed: they differ.
    """
    try:
        listed = json.loads((folder / MANIFEST).read_bytes())["files"]
        wanted = {str(each["path"]): (each["size"], each["sha256"]) for each in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransferFailed(f"checkpoint {name} arrived without a manifest that can be read: {error}") from error
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if there != set(wanted):
        odd = sorted(there.symmetric_difference(wanted))
        raise TransferFailed(
            f"checkpoint {name} arrived with other files than its manifest lists: {', '.join(odd[:3])}"
        )
    for path, (size, sha256) in wanted.items():
        if (folder / path).stat().st_size != size or sha256_file(folder / path) != sha256:
            raise TransferFailed(f"{path} of checkpoint {name} arrived with other content than its manifest says")
