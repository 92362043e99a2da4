"""What ends a pod, and what does not. Each test sets the pod's clock; none waits on real time."""

from __future__ import annotations

from tests.targets.runpod.guarded import GuardedPod


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
