"""The stdin frame, events that are cut, unknown versions."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from stepctl.base.errors import StepctlError
from stepctl.jobs.directory import JobDir, Payload, PayloadMissing, read_payload, write_payload
from stepctl.jobs.events import EventWriter, Status, Warned, decode_events
from stepctl.jobs.spec import decode_job

PAYLOAD = Payload(trace=(b"a\n", b""), eval=(b"\x00\n",), hf_token="t")


def _framed() -> bytes:
    stream = io.BytesIO()
    write_payload(stream, PAYLOAD)
    return stream.getvalue()


def test_the_frame_comes_back() -> None:
    assert read_payload(io.BytesIO(_framed())) == PAYLOAD


@pytest.mark.parametrize("size", range(len(_framed())))
def test_a_frame_cut_anywhere_is_a_missing_trace(size: int) -> None:
    with pytest.raises(PayloadMissing):
        read_payload(io.BytesIO(_framed()[:size]))


def test_events_are_read_by_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write = EventWriter(path)
    write(Status(phase="model"))
    write(Warned(code="c", message="m"))
    data = path.read_bytes()
    events, used = decode_events(data + b'{"type": "status", "ph')
    assert [type(e) for e in events] == [Status, Warned]
    assert used == len(data)
    assert decode_events(b'{"type": "from the future"}\n')[0] == []


@pytest.mark.parametrize("data", [b'{"version": 99}', b"[]", b"{", b"{}"])
def test_an_unknown_job_is_refused(data: bytes) -> None:
    with pytest.raises(StepctlError) as caught:
        decode_job(data)
    assert caught.value.code == "job_version"


def test_cancel_outranks_stop(tmp_path: Path) -> None:
    job = JobDir(tmp_path)
    assert job.requested() is None
    job.request("stop")
    assert job.requested() == "stop"
    job.request("cancel")
    assert job.requested() == "cancel"
