"""A pod that its client leaves for the next call. Each test sets the pod's clock; none waits on real time."""

from __future__ import annotations

from tests.targets.runpod.scripts.guarded import GuardedPod


def leave(pod: GuardedPod, seconds: object) -> None:
    """What a client does that keeps its pod."""
    pod.put("kept", f"{seconds}\n")
    for name in ("job", "claimed"):
        (pod.dir / name).unlink(missing_ok=True)
    pod.looks()


def take(pod: GuardedPod) -> None:
    """What the next call does first."""
    pod.put("claimed", "now\n")
    (pod.dir / "kept").unlink()
    pod.looks()


def test_it_ends_itself_when_nobody_takes_it_in_time(pod: GuardedPod) -> None:
    pod.start()
    pod.train().ends()
    leave(pod, 3000)
    pod.at(2990).holds().at(3000).ends("kept").terminated()
    assert "no call has taken this pod for 3000 s" in pod.said


def test_its_life_is_no_longer_for_that(pod: GuardedPod) -> None:
    pod.start().at(100)
    pod.train().ends()
    leave(pod, 100000)
    pod.at(7159).holds().at(7160).ends("deadline")


def test_it_goes_on_waiting_over_restarts_of_the_container(pod: GuardedPod) -> None:
    pod.start()
    pod.train().ends()
    pod.at(1000)
    leave(pod, 500)
    pod.at(1400).kill()
    pod.start().at(1499).holds().at(1500).ends("kept")


def test_a_time_that_is_none_leaves_the_rules_as_they_are(pod: GuardedPod) -> None:
    pod.start()
    pod.train().ends()
    pod.looks()
    pod.put("kept", "long\n")
    pod.at(599).holds().at(600).ends("done")


def test_the_call_that_takes_it_has_a_lease_and_a_boot_grace_of_its_own(pod: GuardedPod) -> None:
    pod.start()
    pod.train().ends()
    pod.at(3000)
    leave(pod, 2000)
    pod.at(4000)
    take(pod)
    pod.at(4899).holds()
    pod.put("lease", "the next client\n")
    pod.looks().at(5798).holds()
    pod.put("lease", "still there\n")
    pod.looks().at(5799).holds().at(5800).ends("boot")


def test_the_call_that_takes_it_and_dies_at_once(pod: GuardedPod) -> None:
    pod.start()
    pod.train().ends()
    leave(pod, 2000)
    pod.at(1500)
    take(pod)
    pod.at(2399).holds().at(2400).ends("lease")


def test_the_next_job_is_a_job_as_any(pod: GuardedPod) -> None:
    pod.start()
    pod.train("first").ends()
    leave(pod, 2000)
    take(pod)
    second = pod.train("second")
    pod.at(1199).holds()
    second.ends()
    pod.looks()
    leave(pod, 50)
    pod.at(1248).holds().at(1249).ends("kept")


def test_a_job_that_committed_is_waited_for_when_its_pod_is_to_be_kept(pod: GuardedPod) -> None:
    pod.put("keep", "")
    pod.start()
    pod.train().ends(bucket="hf://buckets/u/b")
    pod.at(599).holds()
    leave(pod, 100)
    pod.at(698).holds().at(699).ends("kept")


def test_a_job_that_committed_is_not_waited_for_for_ever(pod: GuardedPod) -> None:
    pod.put("keep", "")
    pod.start()
    pod.train().ends(bucket="hf://buckets/u/b")
    pod.looks().at(599).holds().at(600).ends("done")
