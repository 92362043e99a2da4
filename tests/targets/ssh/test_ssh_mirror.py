"""Files here that are a prefix of those there, whatever comes in what order."""

from __future__ import annotations

import fcntl
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepctl.jobs.directory import JobDir
from stepctl.jobs.remote import Ask, Job
from stepctl.targets.ssh.mirror import LATE_SEC, Mirror

EVENTS = bytes(range(256)) * 4
LOG = EVENTS[::-1]


def spec(attempt: str) -> bytes:
    return msgspec.json.encode({"attempt": attempt})


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return JobDir(tmp_path)


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def mirror(job: JobDir, now: list[float]) -> Mirror:
    made = Mirror(job, lambda: now[0])
    assert made.attempt is None
    made.begin(spec("a1"))
    return made


def told(events: slice = slice(None), log: slice = slice(None), **more: object) -> Job:
    base = {"attempt": "a1", "events": EVENTS[events], "log": LOG[log], "events_size": 1024, "log_size": 1024}
    return Job(**{**base, **more})  # type: ignore[arg-type]


def asked(events: int, log: int) -> Ask:
    return Ask(op="poll", events=events, log=log)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1024), st.integers(0, 1024)), max_size=12))
def test_pieces_in_any_order_leave_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, int]]
) -> None:
    job = JobDir(tmp_path_factory.mktemp("job"))
    mirror = Mirror(job, lambda: 0.0)
    mirror.begin(spec("a1"))
    reached = 0
    for start, size in [*pieces, (0, 1024)]:
        mirror.take(asked(start, start), told(slice(start, start + size), slice(start, start + size)))
        end = min(start + size, 1024)
        reached = end if start <= reached < end else reached
        here = job.events.read_bytes() if job.events.exists() else b""
        assert here == EVENTS[:reached]
        assert (job.log.read_bytes() if job.log.exists() else b"") == LOG[:reached]
    assert mirror.offsets() == (1024, 1024)


def test_another_start_is_not_taken_over(mirror: Mirror, job: JobDir) -> None:
    for attempt in ("a0", ""):
        assert not mirror.take(asked(0, 0), told(attempt=attempt, exit_code=b"0\n", result=b"{}", reason="cost"))
    assert [path.name for path in job.path.iterdir() if path.name not in ("job.json", ".sync")] == []


def test_a_new_start_removes_what_the_last_one_left(mirror: Mirror, job: JobDir) -> None:
    mirror.take(asked(0, 0), told(exit_code=b"1\n", result=b"{}", reason="cost"))
    assert job.exit_code.exists()
    mirror.begin(spec("a2"))
    assert mirror.attempt == "a2"
    leftovers = (job.exit_code, job.result, job.events, job.log, job.reason)
    assert [path for path in leftovers if path.exists()] == []


def test_the_exit_code_comes_last(mirror: Mirror, job: JobDir) -> None:
    assert not mirror.take(asked(0, 0), told(slice(0, 10), exit_code=b"0\n", result=b'{"a": 1}'))
    assert not job.result.exists()
    assert mirror.take(asked(10, 1024), told(slice(10, 1024), slice(0, 0), exit_code=b"0\n", result=b'{"a": 1}'))
    assert (job.result.read_bytes(), job.exit_code.read_bytes()) == (b'{"a": 1}', b"0\n")


def test_a_process_that_still_ends_is_waited_for_a_moment(mirror: Mirror, job: JobDir, now: list[float]) -> None:
    mirror.take(asked(0, 0), told())
    ending = told(slice(0, 0), slice(0, 0), exit_code=b"0\n", result=b"{}", alive=True)
    mirror.take(asked(1024, 1024), ending)
    now[0] = LATE_SEC - 0.1
    mirror.take(asked(1024, 1024), ending)
    assert not job.exit_code.exists()
    now[0] = LATE_SEC
    mirror.take(asked(1024, 1024), ending)
    assert job.exit_code.exists()


def test_one_process_writes_at_a_time(mirror: Mirror, job: JobDir) -> None:
    with (job.path / ".sync").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not mirror.take(asked(0, 0), told())
        assert not job.events.exists()
    assert mirror.take(asked(0, 0), told())


def test_a_reason_is_kept_as_it_was_first_given(mirror: Mirror, job: JobDir) -> None:
    for reason in ("deadline", "stall"):
        mirror.take(asked(0, 0), told(reason=reason))
    assert job.reason.read_text() == "deadline"
