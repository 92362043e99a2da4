"""How old a pod is: by the provider's clock and a monotonic one, never by the wall clock of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.targets.runpod.scripts.guarded import BOOTED, GuardedPod, until
from tests.targets.runpod.scripts.stub_api import StubApi

# The stub's Date is 2026-11-30 23:59:50 GMT when the container starts.


def fake_date(pod: GuardedPod, epoch: int) -> Path:
    """A wall clock that stands, and that the test sets by writing the file."""
    clock = pod.folder / "wall"
    clock.write_text(f"{epoch}\n")
    pod.programs["date"] = f'#!/bin/sh\nread -r t <"{clock}"\necho "$t"\n'
    return clock


@pytest.mark.parametrize("wall", [0, 4_000_000_000])
def test_a_wrong_wall_clock_does_not_matter(pod: GuardedPod, wall: int) -> None:
    clock = fake_date(pod, wall)
    pod.start().at(500)
    clock.write_text(f"{wall + 10_000_000}\n")
    pod.looks().at(899).holds().at(900).ends("lease")


def test_without_an_uptime_the_wall_clock_is_taken_but_not_its_jumps(pod: GuardedPod) -> None:
    pod.env["STEPCTL_UPTIME"] = str(pod.folder / "none")
    clock = fake_date(pod, 1_000_000_000)
    pod.start()
    for epoch in (1_000_000_400, 1_900_000_000, 5, 300):
        clock.write_text(f"{epoch}\n")
        pod.looks()
    pod.holds()
    assert pod.state("C") == 400 + 295
    clock.write_text("505\n")
    pod.looks().ends("lease")


@pytest.mark.parametrize("wall", ["", "Mon Nov 30", "-5"])
def test_without_any_clock_its_own_looks_are_counted(pod: GuardedPod, wall: str) -> None:
    pod.env |= {"STEPCTL_UPTIME": str(pod.folder / "none"), "STEPCTL_TICK": "1.0", "STEPCTL_LEASE": "1"}
    fake_date(pod, 0).write_text(f"{wall}\n")
    pod.start().ends("lease")


def test_times_are_read_as_they_are_meant(pod: GuardedPod, api: StubApi) -> None:
    pod.env |= {f"STEPCTL_{name}": "99999999" for name in ("MAX_SECONDS", "BOOT_GRACE", "LEASE")}
    times = (
        ("2026-11-30T23:59:10Z", "Mon, 30 Nov 2026 23:59:50 GMT", 40),
        ("2026-11-30T23:59:10.987654Z", "Mon, 30 Nov 2026 23:59:50 GMT", 40),
        ("2026-12-01T01:59:10+02:00", "Mon, 30 Nov 2026 23:59:51 GMT", 41),
        ("2026-11-30T18:29:10.5-05:30", "Mon, 30 Nov 2026 23:59:52 GMT", 42),
        ("2026-11-30 23:59:10", "Mon, 30 Nov 2026 23:59:53 GMT", 43),
        ("2026-11-30T23:59:10Z", "Tue, 01 Dec 2026 00:00:08 GMT", 58),
        ("2023-12-31T23:59:59Z", "Mon, 01 Jan 2024 00:00:00 GMT", 1),
        ("2024-02-28T08:09:08Z", "Fri, 01 Mar 2024 09:08:09 GMT", 2 * 86400 + 3541),
        ("2100-02-28T00:00:00Z", "Mon, 01 Mar 2100 00:00:00 GMT", 86400),
        ("2027-07-31T23:00:00Z", "Sun, 08 Aug 2027 09:00:00 GMT", 7 * 86400 + 36000),
        ("2026-11-30T23:59:50Z", "Mon, 30 Nov 2026 23:58:50 GMT", 0),  # the two of one answer may differ a little
    )
    found = []
    for api.created, api.date, _ in times:
        pod.start()
        found.append(pod.state("OFFSET"))
        pod.kill()
    assert found == [age for _, _, age in times]


def test_a_time_that_cannot_be_is_passed_over(pod: GuardedPod, api: StubApi) -> None:
    pod.env["STEPCTL_BOOT_GRACE"] = "99999"
    pod.start()
    for number, (api.created, api.date) in enumerate(
        (
            ("0001-01-01T00:00:00Z", None),
            ("1970-01-01T00:00:00Z", None),
            ("2027-11-30T23:59:10Z", None),
            ("yesterday", None),
            ("", None),
            ("2026-11-30T23:59:10+2h", None),
            ("$(reboot)-11-30T23:59:10Z", None),
            ("2026-11-30T23:59:10Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
            ("2026-11-30T23:59:10Z", "soon"),
            ("2026-11-30T23:59:10Z", "Mon, 30 Foo 2026 23:59:50 GMT"),
        )
    ):
        asked = api.count("GET")
        pod.at(600 + 60 * number)
        assert api.count("GET") > asked
        pod.put("lease", f"{number}\n")
    assert pod.state("OFFSET") == 40
    assert "the provider does not tell this pod's age: 200" in pod.said
    pod.holds()


def test_an_api_that_never_answers_leaves_the_age_since_the_first_start(pod: GuardedPod, api: StubApi) -> None:
    api.close()
    pod.env["STEPCTL_MAX_SECONDS"] = "600"
    pod.start().at(300).kill()
    pod.set_clock(400)
    pod.start().at(599)
    assert not pod.ending
    pod.at(600).ends("deadline")
    api.open()
    pod.terminated()


def test_the_age_is_asked_again_every_ten_minutes(pod: GuardedPod, api: StubApi) -> None:
    pod.env["STEPCTL_LEASE"] = "99999"
    pod.start().at(599)
    assert api.count("GET") == 1
    api.age = 940  # this pod's clock went wrong, say
    pod.at(600)
    assert api.count("GET") == 2
    assert pod.state("OFFSET") == 940
    pod.at(860).ends("boot")


def test_an_unknown_age_is_asked_more_often_and_not_at_every_look(pod: GuardedPod, api: StubApi) -> None:
    api.answers["GET"] = [500]
    pod.start().at(4)
    assert api.count("GET") == 1
    for seconds in (5, 10, 15, 35, 75):
        pod.at(seconds)
    assert api.count("GET") == 5
    assert pod.said.count("does not tell this pod's age") == 1
    api.answers["GET"] = [200]
    pod.at(134)
    assert pod.state_text("OFFSET") == ""
    pod.at(135)
    assert pod.state("OFFSET") == 40


def test_an_age_is_known_after_a_restart_though_the_api_is_gone(pod: GuardedPod, api: StubApi) -> None:
    api.age = 1000
    pod.start().at(100).kill()
    api.close()
    pod.start().at(799)
    assert not pod.ending
    pod.at(800).ends("boot")


def test_a_host_that_was_started_again_takes_no_time_away(pod: GuardedPod) -> None:
    pod.start().at(500).kill()
    pod.set_clock(100 - BOOTED)  # up for 100 s
    pod.start()
    assert pod.state("C") == 600
    pod.at(399 - BOOTED).holds().at(400 - BOOTED).ends("lease")


def test_an_uptime_that_cannot_be_read_for_a_while_counts_ticks(pod: GuardedPod) -> None:
    pod.env["STEPCTL_TICK"] = "1.0"
    pod.start(wait=False)
    until(lambda: pod.state("LOOKS"), "a look")
    pod.uptime.write_text("garbage\n")
    until(lambda: pod.state("C") == 1, "a tick")
    pod.uptime.unlink()
    until(lambda: pod.state("C") == 2, "another")


@pytest.mark.parametrize("text", ["", "C=\nLOOKS=x\nOFFSET=-1\nMAX=1e9\nJOB\n\x00\nend\n", "C=100\nSOURCE=uptime\nCLO"])
def test_a_lost_state_counts_from_the_first_start(pod: GuardedPod, text: str) -> None:
    pod.start().at(300).kill()
    pod.put("state", text)
    pod.set_clock(400)
    pod.start(wait=False)
    until(lambda: pod.state("LOOKS") > 0, "a look")
    assert pod.state("C") == 400
    pod.at(899).holds().at(900).ends("lease")
