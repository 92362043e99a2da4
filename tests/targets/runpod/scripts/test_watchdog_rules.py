"""What ends a pod before its job has started, and by age. Each test sets the pod's clock; none waits on real time."""

from __future__ import annotations

import pytest
from tests.targets.runpod.scripts.guarded import GuardedPod, until
from tests.targets.runpod.scripts.stub_api import StubApi

# The stub says that the pod is 40 s older than its container.


def test_a_lease_that_is_not_renewed_ends_the_pod(pod: GuardedPod) -> None:
    pod.start().at(100)
    pod.put("lease", "one\n")
    pod.looks().at(999).holds().at(1000).ends("lease").terminated()


def test_a_lease_that_is_renewed_holds_the_pod(pod: GuardedPod) -> None:
    pod.start()
    for number, seconds in enumerate((800, 1600)):
        pod.at(seconds).put("lease", f"line {number}\n")
        pod.looks()
    pod.at(1750).holds()


def test_a_client_that_never_comes_counts_from_the_start(pod: GuardedPod) -> None:
    pod.start().at(899).holds().at(900).ends("lease").terminated()


def test_garbage_in_the_lease_is_one_sign_and_no_more(pod: GuardedPod) -> None:
    (pod.dir / "lease").write_bytes(b"\x00\xff\xfe -n $(date) `id` %s \\ 'x \"y")
    pod.start().at(899).holds().at(900).ends("lease")


def test_a_lease_read_half_way_or_gone_for_a_moment_renews_nothing(pod: GuardedPod) -> None:
    pod.put("lease", "one\n")
    pod.start().at(300)
    pod.put("lease", "")
    pod.looks().at(400)
    (pod.dir / "lease").unlink()
    pod.looks().at(500)
    pod.put("lease", "one\n")
    pod.looks().at(900).ends("lease")


def test_one_late_look_does_not_end_the_pod_when_the_next_one_is_in_time(pod: GuardedPod) -> None:
    pod.env["STEPCTL_TICK"] = "0.4"
    pod.start()
    looks = pod.state("LOOKS")
    pod.set_clock(900)
    until(lambda: pod.state("LOOKS") > looks, "one look")
    pod.put("lease", "in time\n")
    pod.holds()


def test_a_job_that_never_starts_ends_the_pod_however_much_a_client_is_there(pod: GuardedPod) -> None:
    pod.start()
    for seconds in (600, 1200, 1759):
        pod.put("lease", f"{seconds}\n")
        pod.at(seconds).holds()
    pod.at(1760).ends("boot").terminated()


def test_boot_grace_and_lease_go_on_over_restarts_of_the_container(pod: GuardedPod) -> None:
    pod.start().at(100)
    pod.put("lease", "one\n")
    pod.looks()
    for seconds in (500, 700):
        pod.kill()
        pod.start().at(seconds).holds()
    pod.at(999).holds().at(1000).ends("lease")


def test_a_restart_does_not_give_a_client_that_hangs_more_time_to_start_the_job(pod: GuardedPod) -> None:
    pod.start()
    for seconds in (800, 1600):
        pod.put("lease", f"{seconds}\n")
        pod.looks().kill()
        pod.start().at(seconds).holds()
    pod.put("lease", "last\n")
    pod.looks().at(1760).ends("boot")


def test_a_bootstrap_that_cannot_work_ends_the_pod_at_once(pod: GuardedPod) -> None:
    pod.start()
    pod.put("broken", "no sshd, and no package manager\n")
    pod.ends("boot").terminated()
    assert "no sshd, and no package manager" in pod.said


def test_a_mark_that_names_no_job_is_no_start(pod: GuardedPod) -> None:
    (pod.folder / "job").mkdir()
    pod.start()
    for text in (str(pod.folder / "jo"), str(pod.folder / "job"), "../job\n", ""):
        pod.put("job", text)
        pod.looks()
    pod.at(900).ends("lease")


@pytest.mark.parametrize("reason", ["deadline", "cost"])
def test_age_ends_a_pod_that_waits_for_its_job(pod: GuardedPod, reason: str) -> None:
    pod.env |= {"STEPCTL_MAX_SECONDS": "600", "STEPCTL_MAX_REASON": reason}
    pod.start().at(559).holds().at(560).ends(reason).terminated()


def test_a_container_that_starts_late_counts_from_create(pod: GuardedPod, api: StubApi) -> None:
    api.age = 1795
    pod.start().holds().at(5).ends("boot")


def test_a_pod_that_was_stopped_and_started_again_after_its_time_ends_at_once(pod: GuardedPod, api: StubApi) -> None:
    api.age = 90000
    pod.start().ends("deadline").terminated()


def test_an_end_that_was_decided_is_carried_on_after_a_restart(pod: GuardedPod, api: StubApi) -> None:
    api.answers |= {"terminate": [500], "DELETE": [500], "stop": [500]}
    pod.start().at(900).ends("lease").terminated()
    pod.kill()
    pod.put("lease", "a client, too late\n")
    api.seen.clear()
    api.answers["terminate"] = [204]
    pod.start().terminated()


def test_limits_are_tightened(pod: GuardedPod) -> None:
    pod.start()
    pod.put("limits", "MAX_SECONDS=500\nMAX_REASON=cost\n")
    pod.looks().at(459).holds().at(460).ends("cost")


@pytest.mark.parametrize(
    "text",
    [
        "MAX_SECONDS=9999\n",
        "MAX_SECONDS=\nMAX_SECONDS=-5\nMAX_SECONDS=1e2\nMAX_SECONDS=100 \x07\nMAX_SECONDS=0x10\nMAX_SECONDS\n",
        "MAX_SECONDS=10",
        "LEASE=1\nBOOT_GRACE=1\n=\n\x00\n$(reboot)\nMAX_REASON=boredom\n",
        "MAX_SECONDS=99999999999999999999\n",
    ],
    ids=["loosened", "garbage", "torn", "unknown", "huge"],
)
def test_limits_are_never_loosened_and_garbage_in_them_is_passed_over(pod: GuardedPod, text: str) -> None:
    pod.env["STEPCTL_MAX_SECONDS"] = "600"
    pod.put("limits", text)
    pod.start().at(559).holds().at(560).ends("deadline")


def test_a_tightened_limit_stays_when_the_file_is_gone_and_the_container_starts_again(pod: GuardedPod) -> None:
    pod.put("limits", "MAX_SECONDS=500\n")
    pod.start().kill()
    (pod.dir / "limits").unlink()
    pod.start().at(460).ends("deadline")


def test_settings_that_are_no_numbers_give_way_to_defaults(pod: GuardedPod) -> None:
    pod.env |= {"STEPCTL_LEASE": "15m", "STEPCTL_GRACE": "", "STEPCTL_MAX_SECONDS": "$((1))"}
    pod.start()
    assert "STEPCTL_LEASE is not a number of seconds: 900 is used" in pod.said
    assert "STEPCTL_MAX_SECONDS is not a number of seconds: 3600 is used" in pod.said
    pod.at(899).holds().at(900).ends("lease")
