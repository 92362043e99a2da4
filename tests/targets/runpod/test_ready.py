"""Waiting for a login: RUNNING is not enough, and every way not to get there ends in words that say which it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.doubles.runpod import Fault
from tests.targets.runpod.acting import RUN, Desk

from stepctl.base.errors import StepctlError
from stepctl.runs.pods import Attempt
from stepctl.targets.runpod.attempts import change
from stepctl.targets.runpod.errors import BadKey
from stepctl.targets.runpod.keys import prepare_keys
from stepctl.targets.runpod.ready import KeyRefused, NotReady, PodLost, Probe, Word, wait_ready

GRACE = 1800.0


@pytest.fixture
def made(desk: Desk) -> Attempt:
    """A pod whose container starts after 40 s."""
    prepare_keys(desk.api, desk.file)
    desk.sandbox.quirks(boot=40)
    return desk.make()


def wait(desk: Desk, attempt: Attempt, probe: Probe, grace: float = GRACE) -> Attempt:
    return wait_ready(desk.api, desk.file, attempt, probe, desk.pace, desk.tell, grace=grace)


def timed(desk: Desk, *words: tuple[float, Word]) -> Callable[[str, int], Word]:
    """What a login finds from so many seconds after now on."""
    begun = desk.clock.now()

    def probe(host: str, port: int) -> Word:
        since = desk.clock.now() - begun
        return [word for seconds, word in words if since >= seconds][-1]

    return probe


def test_ready_is_an_address_and_a_login(desk: Desk, made: Attempt) -> None:
    probe = timed(desk, (0, "closed"), (90, "denied"), (95, "ok"))
    ready = wait(desk, made, probe)
    assert (ready.state, ready.ssh_host, ready.pod) == ("ready", "127.77.0.1", made.pod)
    assert ready.ready_at
    assert 93 <= desk.clock.waited < 110
    assert desk.file.load().current == ready
    said = [line for line in desk.told if line.startswith("waiting for pod")]
    assert [line.split(": ", 1)[1].split(" at ")[0] for line in said] == [
        "its image is pulled and its container started; it has no SSH port yet",
        "nobody answers",
        "its sshd",
    ]


def test_the_host_key_is_pinned_before_the_first_login(desk: Desk, made: Attempt) -> None:
    seen: list[str] = []

    def probe(host: str, port: int) -> Word:
        seen.append(f"[{host}]:{port} {desk.file.load().host_key}\n")
        assert desk.file.known_hosts.read_text() == seen[-1]
        return "ok"

    wait(desk, made, probe)
    assert len(seen) == 1


def test_never_reachable(desk: Desk, made: Attempt) -> None:
    desk.sandbox.quirks(made.pod, boot=100_000)
    with pytest.raises(NotReady, match=r"no SSH port yet") as caught:
        wait(desk, made, lambda *_: "ok", grace=300)
    assert 295 <= desk.clock.waited <= 320
    assert caught.value.code == "pod_not_ready"
    assert len([line for line in desk.told if "no SSH port" in line]) == 1
    assert len(desk.sandbox.calls(f"GET /v2/pods/{made.pod}")) <= 20
    desk.end("not ready")
    assert desk.sandbox.pods() == []


def test_ten_that_wait_stay_far_below_the_rate_limit(desk: Desk, made: Attempt) -> None:
    with pytest.raises(NotReady):
        wait(desk, made, lambda *_: "closed", grace=1200)
    looks = len(desk.sandbox.calls(f"GET /v2/pods/{made.pod}"))
    assert 10 * looks / 20 < 30  # a minute


def test_the_grace_counts_from_the_pods_creation(desk: Desk, made: Attempt) -> None:
    """Another call takes the wait up: it gets no new time."""
    desk.sandbox.quirks(made.pod, boot=100_000)
    desk.clock.sleep(250)
    with pytest.raises(NotReady):
        wait(desk, made, lambda *_: "ok", grace=300)
    assert desk.clock.waited <= 330


def test_a_login_refused_for_long_is_a_matter_of_keys(desk: Desk, made: Attempt) -> None:
    with pytest.raises(KeyRefused, match="key") as caught:
        wait(desk, made, timed(desk, (0, "closed"), (60, "denied")))
    assert caught.value.code == "pod_key_refused"
    assert 118 <= desk.clock.waited < 150


def test_denied_before_a_restart_of_sshd_does_not_count(desk: Desk, made: Attempt) -> None:
    words = ((0, "denied"), (70, "closed"), (80, "denied"), (130, "ok"))
    assert wait(desk, made, timed(desk, *words)).state == "ready"  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["EXITED", "ERROR"])
def test_it_stops(desk: Desk, made: Attempt, status: str) -> None:
    desk.sandbox.quirks(made.pod, exit=60, exit_status=status)
    with pytest.raises(PodLost, match=status):
        wait(desk, made, lambda *_: "closed")
    assert desk.clock.waited < 80


def test_it_vanishes(desk: Desk, made: Attempt) -> None:
    desk.sandbox.quirks(made.pod, vanish=60)
    with pytest.raises(PodLost, match="vanished"):
        wait(desk, made, lambda *_: "closed")
    assert 58 <= desk.clock.waited < 120
    desk.end("lost")
    assert (desk.attempts[0].state, desk.attempts[0].ended_by) == ("gone", "provider")


def test_one_404_is_passed_over(desk: Desk, made: Attempt) -> None:
    desk.sandbox.quirks(made.pod, unfound=2)
    assert wait(desk, made, lambda *_: "ok").state == "ready"


def test_the_provider_gives_no_answer_for_a_while(desk: Desk, made: Attempt) -> None:
    desk.sandbox.fault(Fault("^GET /v2/pods/", status=500, times=7))
    assert wait(desk, made, lambda *_: "ok").state == "ready"
    assert any("server failed (500)" in line for line in desk.told)


def test_the_key_is_refused_meanwhile(desk: Desk, made: Attempt) -> None:
    desk.sandbox.fault(Fault("^GET /v2/pods/", status=401, times=0))
    with pytest.raises(BadKey):
        wait(desk, made, lambda *_: "ok")


def test_a_new_port_is_followed(desk: Desk, made: Attempt) -> None:
    tried: list[int] = []

    def probe(host: str, port: int) -> Word:
        tried.append(port)
        if len(tried) == 3:
            for action in ("stop", "start"):
                desk.api.action(made.pod or "", action)
        return "ok" if port != tried[0] else "closed"

    ready = wait(desk, made, probe)
    assert ready.ssh_port == tried[-1] != tried[0]
    assert f"]:{ready.ssh_port} " in desk.file.known_hosts.read_text()


def test_an_error_of_the_probe_goes_through(desk: Desk, made: Attempt) -> None:
    def probe(*_: object) -> Word:
        raise StepctlError("another host key", code="host_key")

    with pytest.raises(StepctlError, match="another host key"):
        wait(desk, made, probe)


def test_a_pod_that_works_stays_what_it_is(desk: Desk, made: Attempt) -> None:
    working = change(desk.file, made, state="working", ready_at="then")
    ready = wait(desk, working, lambda *_: "ok")
    assert (ready.state, ready.ready_at, ready.ssh_host) == ("working", "then", "127.77.0.1")


def test_the_late_pod_of_an_earlier_create_is_deleted(desk: Desk) -> None:
    prepare_keys(desk.api, desk.file)
    desk.sandbox.quirks(boot=100)
    desk.sandbox.fault(Fault("^POST /v2/pods$", drop=True, when="after", pod={"unlisted": 6}))
    second = desk.make()
    assert desk.states() == ["unresolved", "made"]
    ready = wait(desk, second, lambda *_: "ok")
    assert ready.pod == second.pod
    assert [pod["id"] for pod in desk.sandbox.pods()] == [second.pod]
    assert any("came late" in line for line in desk.told)
    assert desk.states() == ["ending", "ready"]
    desk.end()
    assert desk.states() == ["gone", "gone"]


def test_a_pod_that_makes_its_own_host_key(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.sandbox.fault(Fault("/account/secrets", status=403, times=0))
    assert prepare_keys(desk.api, desk.file).host is None
    made = desk.make()
    assert made.pod
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGSIKQQdpfHn8kgBzHtLsTgMJUVeWPxtTb0XkSBEEKNX"
    answers = iter([None, None, key])
    monkeypatch.setattr("stepctl.targets.runpod.ready.host_key_from_log", lambda *_: next(answers))
    assert wait(desk, made, lambda *_: "ok").state == "ready"
    assert desk.file.load().host_key == key
    assert key in desk.file.known_hosts.read_text()
    assert any("host key is not in its log yet" in line for line in desk.told)
    assert RUN in made.name
