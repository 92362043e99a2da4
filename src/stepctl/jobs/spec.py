"""``job.json``: all that a job is told, but for secrets and examples, which come on stdin."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stepctl.base.errors import StepctlError
from stepctl.config.model import LoraSettings, TrainSettings
from stepctl.lineage.records import Identity

JOB_VERSION = 1


class TraceFile(Struct, frozen=True, kw_only=True):
    """One file of a trace: its name as given and its size in bytes."""

    name: str
    bytes: int


class TraceSpec(Struct, frozen=True, kw_only=True):
    """The examples that come on stdin, in order. ``sha256`` is over the concatenated bytes of the files; of their rows
    ``rows_total`` train, and ``rows_sha256`` says which.
    """

    sha256: str
    files: tuple[TraceFile, ...]
    rows_total: int
    rows_start: int = 0
    rows_sha256: str = ""


class ModelSpec(Struct, frozen=True, kw_only=True):
    """``source`` is a Hub id or an absolute folder; ``revision`` a commit (Hub only)."""

    source: str
    revision: str | None = None
    trust_remote_code: bool = False


class JobSpec(Struct, frozen=True, kw_only=True):
    """One training job.

    ``parent`` is the checkpoint to continue from, or a root (then training starts at step 0); ``parent_sha256`` the
    digest of that checkpoint's manifest. ``new_root`` says that a choice of ``parent`` as the start is to be written
    with the first commit (``--fresh``). ``init_from`` is a folder with an adapter. ``bucket`` is an absolute path, or
    the URL of one on the Hub. ``attempt`` tells two jobs apart that were started for one run: an older one writes no
    result. ``staged`` says that ``bucket`` only lies between: who started the job fetches each checkpoint and
    stores it where the lineage lives.
    """

    version: int
    release: str
    run: str
    identity: Identity
    model: ModelSpec
    lora: LoraSettings
    train: TrainSettings
    trace: TraceSpec
    eval: TraceSpec | None
    bucket: str
    lineage: str
    parent: str
    parent_sha256: str | None
    from_step: int
    new_root: bool
    key: str | None
    keep_checkpoints: int
    init_from: str | None = None
    attempt: str = ""
    staged: bool = False


def decode_job(data: bytes) -> JobSpec:
    """Read ``job.json``.

    Raises:
        StepctlError: it is of an unknown version, or not a job.
    """
    try:
        version = msgspec.json.decode(data).get("version")
        if version != JOB_VERSION:
            raise StepctlError(
                f"this job has version {version}, and this stepctl reads version {JOB_VERSION}",
                next="install the same release of stepctl on both machines",
                code="job_version",
            )
        return msgspec.json.decode(data, type=JobSpec)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise StepctlError(f"job.json cannot be read: {error}", code="job_version") from error
