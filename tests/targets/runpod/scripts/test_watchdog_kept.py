"""A pod that is left for the next call, and one that a call has taken: no job counts until there is a new mark."""

from __future__ import annotations

import shutil

from tests.targets.runpod.scripts.guarded import GuardedPod, Trainer

# The stub says that the pod is 40 s older than its container.


def used(pod: GuardedPod) -> Trainer:
    """Its job has ended, with nothing left to wait for but the grace."""
    pod.start()
    job = pod.train()
    pod.at(100)
    job.ends()
    pod.looks()
    return job


def keep(pod: GuardedPod, text: str = "1000 1\n") -> None:
    """As the client does it."""
    for name in ("job", "claimed"):
        (pod.dir / name).unlink(missing_ok=True)
    pod.put("kept", text)
    pod.looks()


def claim(pod: GuardedPod, text: str) -> None:
    pod.put("claimed", text)
    (pod.dir / "kept").unlink()
    pod.looks()


def test_its_own_limit_is_all_that_ends_a_kept_pod(pod: GuardedPod) -> None:
    used(pod)
    keep(pod)
    pod.at(800).holds().at(1099).holds().at(1100).ends("kept").terminated()


def test_a_kept_pod_outlives_boot_grace_lease_and_retrieve_grace_but_not_its_life(pod: GuardedPod) -> None:
    used(pod)
    keep(pod, "100000 1\n")
    pod.at(1900).holds().at(7159).holds().at(7160).ends("deadline").terminated()


def test_the_folder_of_the_job_before_is_no_job(pod: GuardedPod) -> None:
    """Left over, or removed: neither is a job that ended, nor one that stalls."""
    job = used(pod)
    keep(pod)
    assert pod.state_text("JOB") == ""
    shutil.rmtree(job.path)
    pod.at(1050).holds()
    claim(pod, "a\n")
    assert pod.state_text("JOB") == ""
    pod.at(1900).holds()


def test_boot_grace_and_lease_count_from_the_claim(pod: GuardedPod) -> None:
    used(pod)
    keep(pod, "5000 1\n")
    pod.at(4000)
    claim(pod, "a\n")
    pod.at(4899).holds()
    pod.put("lease", "installing\n")
    pod.looks().at(5798).holds()
    pod.put("lease", "still\n")
    pod.looks().at(5799).holds().at(5800).ends("boot").terminated()


def test_a_client_that_is_lost_after_its_claim_ends_the_pod(pod: GuardedPod) -> None:
    used(pod)
    keep(pod, "5000 1\n")
    pod.at(4000)
    claim(pod, "a\n")
    pod.at(4899).holds().at(4900).ends("lease")


def test_a_claim_holds_over_restarts_of_the_container(pod: GuardedPod) -> None:
    used(pod)
    keep(pod)
    pod.kill()
    pod.start().at(1000).holds()
    claim(pod, "a\n")
    pod.kill()
    pod.start().at(1899).holds().at(1900).ends("lease")


def test_a_job_on_a_pod_that_was_kept_is_a_job(pod: GuardedPod) -> None:
    used(pod)
    keep(pod)
    pod.at(900)
    claim(pod, "a\n")
    job = pod.train("second")
    pod.at(3000)
    assert job.control("reason") == "stall\n"


def test_a_pod_that_is_kept_again_has_its_time_anew(pod: GuardedPod) -> None:
    """Also when the watchdog saw nothing of the call between."""
    used(pod)
    keep(pod)
    pod.at(1000)
    keep(pod, "1000 2\n")
    pod.at(1999).holds().at(2000).ends("kept")


def test_a_claim_that_came_before_the_keep_was_seen(pod: GuardedPod) -> None:
    used(pod)
    (pod.dir / "job").unlink()
    pod.put("claimed", "a\n")
    pod.looks()
    pod.at(800).holds()
    assert pod.state_text("JOB") == ""


def test_garbage_keeps_nothing(pod: GuardedPod) -> None:
    used(pod)
    keep(pod, "for ever\n")
    pod.at(699).holds().at(700).ends("done")
