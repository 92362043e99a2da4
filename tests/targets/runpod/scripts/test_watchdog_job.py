"""What ends a pod once its job has started."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.targets.runpod.scripts.guarded import GuardedPod, until


def test_a_job_holds_the_pod_without_any_client(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    for seconds in (1000, 2000, 3000):
        job.event()
        pod.at(seconds).holds()
    assert job.control("stop") is None


def test_a_job_without_events_is_asked_to_save_and_then_the_pod_ends(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    pod.at(100)
    job.event()
    pod.looks().at(1299).holds()
    assert job.control("stop") is None
    pod.at(1300)
    assert until(lambda: job.control("stop") is not None, "a request to save")
    assert job.control("reason") == "stall\n"
    pod.at(1599).holds().at(1600).ends("stall").terminated()


def test_a_stalled_job_that_saves_gets_its_time_to_be_fetched(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    pod.at(1200)
    until(lambda: job.control("stop") is not None, "a request to save")
    job.ends("stopped")
    pod.looks().at(1799).holds().at(1800).ends("done")


def test_a_job_that_wakes_up_while_it_saves_is_not_cut_off(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    pod.at(1200).at(1400)
    job.event()
    pod.looks().at(1699).holds().at(1700).ends("stall")


@pytest.mark.parametrize("reason", ["deadline", "cost"])
def test_ahead_of_the_limit_a_save_is_asked_for(pod: GuardedPod, reason: str) -> None:
    pod.env |= {"STEPCTL_MAX_SECONDS": "1000", "STEPCTL_MAX_REASON": reason}
    pod.start()
    job = pod.train()
    pod.at(659).holds()
    assert job.control("stop") is None
    pod.at(660)
    until(lambda: job.control("stop") is not None, "a request to save")
    assert job.control("reason") == f"{reason}\n"
    pod.at(959).holds().at(960).ends(reason).terminated()


@pytest.mark.parametrize("limit", ["0700", "00800"])
def test_a_limit_with_zeros_in_front_is_no_octal_number(pod: GuardedPod, limit: str) -> None:
    pod.put("limits", f"MAX_SECONDS={limit}\n")
    pod.start()
    job = pod.train()
    pod.at(int(limit) - 341).holds()
    assert job.control("stop") is None
    pod.at(int(limit) - 340)
    assert job.control("reason") == "deadline\n"
    pod.at(int(limit) - 40).ends("deadline")


def test_the_limit_holds_for_a_job_that_is_full_of_life(pod: GuardedPod) -> None:
    pod.env["STEPCTL_MAX_SECONDS"] = "1000"
    pod.start()
    job = pod.train()
    for seconds in (500, 900, 960):
        job.event()
        pod.at(seconds)
    pod.ends("deadline")


def test_a_saved_stop_before_the_limit_can_be_fetched_until_the_limit(pod: GuardedPod) -> None:
    pod.env |= {"STEPCTL_MAX_SECONDS": "1000", "STEPCTL_GRACE": "5000"}
    pod.start()
    job = pod.train()
    pod.at(660)
    until(lambda: job.control("stop") is not None, "a request to save")
    job.ends("stopped")
    pod.at(959).holds().at(960).ends("deadline")


@pytest.mark.parametrize("what", ["stop", "cancel"])
def test_what_somebody_else_asked_for_keeps_its_reason(pod: GuardedPod, what: str) -> None:
    pod.start()
    job = pod.train()
    (job.path / "control").mkdir()
    (job.path / "control" / what).touch()
    pod.at(1200).looks()
    assert [path.name for path in (job.path / "control").iterdir()] == [what]
    pod.at(1500).ends("stall")


def test_a_job_that_ended_waits_to_be_fetched(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    pod.at(1000)
    job.ends()
    pod.looks().at(1599).holds().at(1600).ends("done").terminated()


def test_a_client_that_is_heard_is_waited_for(pod: GuardedPod) -> None:
    """It may be fetching, for longer than the grace; the pod's life ends it all the same."""
    pod.env["STEPCTL_MAX_SECONDS"] = "3040"
    pod.start()
    job = pod.train()
    pod.at(1000)
    job.ends()
    pod.looks()
    for seconds in (1500, 2000, 2300):
        pod.put("lease", f"{seconds}\n")
        pod.looks().at(seconds).holds()
    pod.put("lease", "last\n")
    pod.looks().at(2899).holds().at(2900).ends("done").terminated()


def test_a_client_that_is_heard_holds_off_no_deadline(pod: GuardedPod) -> None:
    pod.env["STEPCTL_MAX_SECONDS"] = "1640"
    pod.start()
    job = pod.train()
    pod.at(1000)
    job.ends()
    pod.looks().at(1500)
    pod.put("lease", "one\n")
    pod.looks().at(1599).holds().at(1600).ends("deadline")


def test_what_was_taken_needs_no_waiting(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    job.write("taken", "")
    pod.looks().holds()
    job.ends()
    pod.ends("taken").terminated()


@pytest.mark.parametrize(
    ("state", "bucket", "ends"),
    [
        ("done", "hf://buckets/me/traces", True),
        ("stopped", "hf://buckets/me/traces", True),
        ("commit_pending", "hf://buckets/me/traces", False),
        ("failed", "hf://buckets/me/traces", False),
        ("done", "/workspace/stepctl/runs/r/bucket", False),
    ],
)
def test_what_the_job_committed_itself_needs_no_waiting(pod: GuardedPod, state: str, bucket: str, ends: bool) -> None:
    pod.start()
    job = pod.train()
    job.ends(state, bucket)
    if ends:
        pod.ends("done").terminated()
    else:
        pod.looks().at(599).holds().at(600).ends("done")


@pytest.mark.parametrize("reaped", [True, False])
def test_a_trainer_that_died_is_an_end(pod: GuardedPod, reaped: bool) -> None:
    pod.start()
    job = pod.train()
    pod.at(100)
    job.process.kill()
    if reaped:
        job.process.wait()
    pod.looks().at(699).holds().at(700).ends("died").terminated()
    assert "its process died" in pod.said


@pytest.mark.parametrize("started", ["{boot}:12", "8d1c8b0e-0000-4000-8000-2f3f6f0c6f3a:{ticks}"])
def test_another_process_with_the_number_of_the_trainer_is_not_the_trainer(pod: GuardedPod, started: str) -> None:
    pod.start()
    job = pod.train(started=started)
    pod.at(599).holds().at(600).ends("died")
    assert job.process.poll() is None


def test_a_restart_of_the_container_that_lost_the_job_ends_the_pod_after_the_grace(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    pod.at(100).kill()
    job.kill()
    pod.start().at(120).holds()
    assert "the job is gone: the container was started again" in pod.said
    pod.kill()
    pod.start().at(699).holds().at(700).ends("died").terminated()
    assert job.control("stop") is None


def test_a_restart_is_seen_when_the_start_time_of_the_trainer_is_not_known(pod: GuardedPod) -> None:
    pod.start()
    pod.train(started="ended at once")
    pod.at(100).holds().kill()
    pod.start().at(200).holds().at(800).ends("died")


def test_a_job_that_ended_before_the_container_was_started_again_can_still_be_fetched(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    job.ends()
    pod.looks().at(100).kill()
    pod.start().at(500).holds().at(600)
    pod.ends("done")


def test_a_job_whose_folder_is_gone_with_its_trainer_has_ended(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    shutil.rmtree(job.path)
    job.kill()
    pod.looks().at(599).holds().at(600).ends("died")


def test_a_job_whose_folder_is_gone_under_its_trainer_is_silent(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    shutil.rmtree(job.path)
    pod.looks().at(1200).holds().at(1499).holds().at(1500).ends("stall")
    assert not job.path.exists()


def test_a_torn_note_of_the_process_does_not_end_anything(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train()
    for text in ('{"pid":', "", '{"pid": "x", "started": 5}', "[]"):
        (job.path / "process.json").write_text(text)
        pod.looks()
    pod.at(700).holds()


def test_a_job_that_is_started_once_more_begins_anew(pod: GuardedPod) -> None:
    pod.start()
    first = pod.train()
    pod.at(100)
    first.ends("needs_trace")
    pod.at(500).holds()
    (first.path / "exit_code").unlink()
    again = pod.train()
    pod.at(1500).holds()
    again.event()
    pod.looks().at(2690).holds()
    assert again.control("stop") is None


def test_another_job_of_a_kept_pod_is_followed_once_it_runs(pod: GuardedPod) -> None:
    pod.start()
    pod.train("first").ends()
    (pod.folder / "second").mkdir()
    pod.put("job", str(pod.folder / "second"))
    pod.at(500).holds()
    second = pod.train("second")
    pod.at(1000).holds()
    second.ends()
    pod.looks().at(1600).ends("done")


def test_a_folder_with_spaces_and_quotes_is_a_folder(pod: GuardedPod) -> None:
    pod.start()
    job = pod.train('a job\'s "own" $HOME = 100%')
    pod.at(100)
    job.ends()
    pod.looks().at(700).ends("done")


def test_a_disk_that_hangs_does_not_hang_the_guard(pod: GuardedPod) -> None:
    pod.env["STEPCTL_MAX_SECONDS"] = "1000"
    pod.start()
    job = pod.train()
    (job.path / "events.jsonl").unlink()
    os.mkfifo(job.path / "events.jsonl")  # a read waits for a writer that never comes
    until(lambda: "its disk does not answer" in pod.said, "a word about it")
    pod.set_clock(960)
    pod.ends("deadline").terminated()
